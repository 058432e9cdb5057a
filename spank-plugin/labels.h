/*
 * Label selectors and tolerations, checked for their form at submit; the controller gives them their meaning.
 *
 *   selector     key=value  key==value  key!=value  key in (a,b)  key notin (a,b)  key  !key, separated by commas
 *   tolerations  key=value, separated by commas, without blanks
 *
 * Names start and end with a letter, digit or _, and may hold - _ . / : in between; values may be empty.
 */
#ifndef JUICE_LABELS_H
#define JUICE_LABELS_H

#include <stdbool.h>

#define LABELS_MAX_LENGTH 1024
#define LABELS_SELECTOR_ACCEPTED "k=v, k!=v, k in (a,b), k notin (a,b), k or !k, separated by commas"
#define LABELS_PAIRS_ACCEPTED "k=v, separated by commas"

/* True when `text` is a selector with at least one term. */
bool labels_is_selector(const char *text);

/* True when `text` is a list of at least one key=value. */
bool labels_is_pairs(const char *text);

#endif
