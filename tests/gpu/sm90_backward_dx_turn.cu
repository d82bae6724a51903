/* A backward that the library does not ship: the warpgroups take turns in more than dZ. */
#define DX_IN_TURN               1
#define BACKWARD_REGISTERS       224
#define BACKWARD_OTHER_REGISTERS 56 /* its producer takes more */
#define BACKWARD_NAME            sm90_backward_dx_turn
#include "device/ce/sm90_backward.h"
