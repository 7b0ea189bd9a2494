/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the page's module exports and imports (csrc/page), as C: in a browser the page
 * is the only one that calls it.
 */
#ifndef NT_FUZZ_PAGE_H
#define NT_FUZZ_PAGE_H

#include "nt_page.h"

const nt_error *
page_error(void);
const double *
page_figures(void);
void *
page_allocate(uint32_t size);
void
page_give_back(void *data, uint32_t size);
void
page_memory_used(void);
void
page_use(uint32_t which);
int32_t
page_load(double limit, double total, uint32_t is_packed);
int32_t
page_save(void);
uint32_t
page_traces(void);
uint32_t
page_trace_length(uint32_t device);
const char *
page_partial(void);
int32_t
page_replay(int32_t device);
const nt_page_column *
page_column(const char *name);
const nt_page_column *
page_answer(uint32_t which);
const char *
page_string(uint32_t id);
const char *
page_action(uint32_t code);
int32_t
page_axes(uint32_t by_time, uint32_t raw_addresses);
uint8_t *
page_codes(void);
int32_t
page_bands(uint32_t count);
int32_t
page_map(double x_first, double x_end, double y_first, double y_end, uint32_t width,
         uint32_t height);
int32_t
page_strip(double first, double end, uint32_t width, uint32_t bands);
void
page_facts(void);
uint32_t
page_highest(uint32_t reserved, uint32_t first, uint32_t end);
void
page_bytes_after(int32_t event);
void
page_rule_sums(int32_t event);
int32_t
page_holders(int32_t event);
int32_t
page_layout(int32_t event);
int32_t
page_categories(const uint16_t *frames, uint32_t count);
uint32_t
page_role(const uint16_t *frames, uint32_t count);
const char *
page_settings(void);
int32_t
page_step_stacks(void);
int32_t
page_find_steps(const uint8_t *roles);
int32_t
page_program(void);
int32_t
page_what_if(const char *settings, uint32_t length, double capacity, uint32_t is_share);
int32_t
page_what_if_most(const char *settings, uint32_t length, double capacity,
                  uint32_t is_share, uint32_t end);
int32_t
page_what_if_trace(const char *settings, uint32_t length, double capacity,
                   uint32_t is_share);
int32_t
page_read(void *buffer, uint32_t capacity);
int32_t
page_write(const void *bytes, uint32_t count);
double
page_allowance(void);

#endif
