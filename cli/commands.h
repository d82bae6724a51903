/* The program's commands. Each gets the arguments after its name and returns an exit code. */
#ifndef CLI_COMMANDS_H
#define CLI_COMMANDS_H

int cmd_info(int count, char **arguments);
int cmd_ce(int count, char **arguments);
int cmd_ep(int count, char **arguments);
int cmd_check(int count, char **arguments);

#endif
