/* One line to the program's standard error, also from a signal handler. */
#ifndef JUICE_MESSAGE_H
#define JUICE_MESSAGE_H

/* Remembers which file standard error is. A program may put another file in its place: nothing is written there. */
void message_begin(void);

/* Writes "juice: " and the parts, up to NULL, as one line. Keeps errno. */
void message_say(const char *part, ...) __attribute__((sentinel));

#endif
