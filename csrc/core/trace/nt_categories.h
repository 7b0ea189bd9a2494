/* SPDX-License-Identifier: Apache-2.0 */
/* What each allocation of a timeline was for: the rules, from roles, passes and
 * lifetimes. Where two readings are possible, a rule leaves the row as it is:
 * unknown. */
#ifndef NT_CATEGORIES_H
#define NT_CATEGORIES_H

#include "trace/nt_passes.h"

/* The rules. The category that each gives, and what it goes by in words, is the
 * caller's to say. */
typedef enum nt_rule {
    NT_RULE_NONE,
    NT_RULE_MODULE_MADE,       /* parameter */
    NT_RULE_AS_GRADIENTS,      /* parameter: there before, as many as gradients */
    NT_RULE_OPTIMIZER_KEPT,    /* optimizer_state */
    NT_RULE_SURVIVES_BACKWARD, /* gradient */
    NT_RULE_ZEROED,            /* gradient: there before, freed by zero_grad() */
    NT_RULE_INSIDE_BACKWARD,   /* autograd_detail */
    NT_RULE_SCRATCH,           /* temporary */
    NT_RULE_OPTIMIZER_SCRATCH, /* temporary */
    NT_RULE_MODULE_OUTPUT,     /* activation */
    NT_RULE_AFTER_MODULE,      /* activation */
    NT_RULE_BEFORE_MODULE,     /* input */
    NT_RULE_FREED_IN_BACKWARD, /* activation: there before, freed in a backward pass */
    NT_RULE_PARAMETER_COPY,    /* parameter: fp32 masters, averages */
    NT_RULE_GRADIENT_COPY,     /* gradient: of masters */
    NT_RULE_BUCKET,            /* gradient */
    NT_RULE_GATHERED,          /* parameter */
    NT_RULE_REDUCED,           /* gradient */
    NT_RULE_KV_CACHE,          /* activation */
    NT_RULE_WORKSPACE,         /* temporary */
    NT_RULE_SCALER_SCRATCH,    /* temporary */
    NT_RULE_LINE_MADE,         /* parameter: by a line of the program */
    NT_RULE_ONE_OF_SEVERAL,    /* unknown: there before, several a gradient */
    NT_RULE_REPLACES,          /* parameter: by an optimizer, for the one before */
    NT_RULE_COUNT,
} nt_rule;

/* Writes the nt_rule of each row of the timeline's allocations into `rules`, which has
 * room for them. Time is linear in rows but for searches among passes, memory some 24
 * bytes a stack and a few a row. On failure `rules` holds nothing of use. */
nt_status
nt_categories_decide(const nt_alloc *alloc, const nt_passes *passes, uint8_t *rules,
                     nt_error *err) NT_CHECKED;

/* Bytes, requested bytes and allocations of one code. */
typedef struct nt_category_sum {
    uint64_t bytes, requested_bytes;
    uint32_t count;
} nt_category_sum;

/* What is allocated after `event` (-1: before the first), by codes[row], each below
 * `count`: sums has room for so many. */
void
nt_categories_sum(const nt_timeline *timeline, const uint8_t *codes, int32_t event,
                  nt_category_sum *sums, size_t count);

/* Writes the bytes allocated after each event by codes[row], each below `count`, into
 * out[code * events + event]; codes[row] == `count` belongs to none. */
void
nt_categories_series(const nt_timeline *timeline, const uint8_t *codes, size_t count,
                     uint64_t *out);

/* Bytes times the events lived, by codes[row]: a double, since the product of a long
 * trace passes 64 bits. */
void
nt_categories_weigh(const nt_timeline *timeline, const uint8_t *codes, double *weights,
                    size_t count);

#endif
