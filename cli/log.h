/* The library's warnings as lines on stderr. */
#ifndef CLI_LOG_H
#define CLI_LOG_H

/* From now on; each line once, though every rank's plan may find the same. */
void log_to_stderr(void);

#endif
