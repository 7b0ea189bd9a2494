/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_settings.h"

#include <stdio.h>
#include <string.h>

#define SETTINGS_MIB UINT64_C(1048576)

/* The keys of PYTORCH_CUDA_ALLOC_CONF, for the message about an unknown one. */
#define SETTINGS_LEGAL                                                                   \
    "max_split_size_mb, max_non_split_rounding_mb, garbage_collection_threshold, "       \
    "roundup_power2_divisions, expandable_segments, large_segment_size_mb, "             \
    "per_process_memory_fraction, backend, and those for pinned memory"

nt_settings
nt_settings_default(void)
{
    return (nt_settings){
        .max_split_size = NT_UNLIMITED,
        .max_non_split_rounding = 20 * SETTINGS_MIB,
        .large_segment_size = 20 * SETTINGS_MIB,
        .per_process_memory_fraction = 1.0,
        .native_backend = true,
    };
}

/* A cursor over the text. Blanks between tokens mean nothing, as in PyTorch. */
typedef struct settings_parser {
    const char *text;
    size_t length;
    size_t at;
    nt_settings settings;
    nt_error *err;
} settings_parser;

/* A piece of the text. */
typedef struct settings_token {
    const char *text;
    size_t length;
    size_t at;
} settings_token;

static nt_status
settings_fail(settings_parser *s, size_t at, const char *what)
{
    (void)nt_fail(s->err, NT_ARGUMENT, at, "%s", what);
    return NT_ARGUMENT;
}

static bool
settings_is_separator(char c)
{
    return c == ',' || c == ':' || c == '[' || c == ']';
}

static void
settings_skip_blanks(settings_parser *s)
{
    while (s->at < s->length && (s->text[s->at] == ' ' || s->text[s->at] == '\t')) {
        s->at++;
    }
}

/* The next character if it is `c`, consumed. */
static bool
settings_take(settings_parser *s, char c)
{
    settings_skip_blanks(s);
    if (s->at < s->length && s->text[s->at] == c) {
        s->at++;
        return true;
    }
    return false;
}

/* The next word, empty where a separator or the end comes first. */
static settings_token
settings_word(settings_parser *s)
{
    settings_skip_blanks(s);
    settings_token word = {.text = s->text + s->at, .at = s->at};
    while (s->at < s->length && !settings_is_separator(s->text[s->at])) {
        s->at++;
    }
    word.length = s->at - word.at;
    while (word.length != 0 && word.text[word.length - 1] == ' ') {
        word.length--;
    }
    return word;
}

static bool
settings_is(settings_token word, const char *name)
{
    return strlen(name) == word.length &&
           (word.length == 0 || memcmp(name, word.text, word.length) == 0);
}

static nt_status
settings_colon(settings_parser *s)
{
    return settings_take(s, ':') ? NT_OK
                                 : settings_fail(s, s->at, "expected ':' and a value");
}

static bool
settings_number(settings_token word, uint64_t *out)
{
    uint64_t number = 0;
    for (size_t i = 0; i < word.length; i++) {
        const char c = word.text[i];
        if (c < '0' || c > '9' || number > (UINT64_MAX / 10) - 1) {
            return false;
        }
        number = number * 10 + (uint64_t)(c - '0');
    }
    *out = number;
    return word.length != 0;
}

static nt_status
settings_take_number(settings_parser *s, uint64_t *out)
{
    NT_TRY(settings_colon(s));
    const settings_token word = settings_word(s);
    return settings_number(word, out)
               ? NT_OK
               : settings_fail(s, word.at, "expected a whole number");
}

/* A size in MiB, at least `least`. */
static nt_status
settings_take_mib(settings_parser *s, uint64_t least, uint64_t *bytes, const char *range)
{
    uint64_t number = 0;
    const size_t at = s->at + 1;
    NT_TRY(settings_take_number(s, &number));
    if (number < least || number > UINT64_MAX / SETTINGS_MIB) {
        return settings_fail(s, at, range);
    }
    *bytes = number * SETTINGS_MIB;
    return NT_OK;
}

/* Digits with an optional point: PyTorch's thresholds are written no other way
 * that matters, and the process's locale plays no part here. */
static bool
settings_decimal(settings_token word, double *out)
{
    double number = 0, scale = 1;
    bool point = false, digits = false;
    for (size_t i = 0; i < word.length; i++) {
        const char c = word.text[i];
        if (c == '.' && !point) {
            point = true;
        } else if (c >= '0' && c <= '9') {
            number = number * 10 + (c - '0');
            scale = point ? scale * 10 : scale;
            digits = true;
        } else {
            return false;
        }
    }
    *out = number / scale;
    return digits;
}

static nt_status
settings_take_share(settings_parser *s, double most, double *out, const char *range)
{
    NT_TRY(settings_colon(s));
    const settings_token word = settings_word(s);
    double number;
    if (!settings_decimal(word, &number) || number <= 0 || number > most) {
        return settings_fail(s, word.at, range);
    }
    *out = number;
    return NT_OK;
}

static nt_status
settings_take_bool(settings_parser *s, bool *out)
{
    NT_TRY(settings_colon(s));
    const settings_token word = settings_word(s);
    if (!settings_is(word, "True") && !settings_is(word, "False")) {
        return settings_fail(s, word.at, "expected True or False");
    }
    *out = settings_is(word, "True");
    return NT_OK;
}

static bool
settings_is_power2(uint64_t number)
{
    return number != 0 && (number & (number - 1)) == 0;
}

/* One `size:divisions` of a list; `>` stands for all sizes behind *last. */
static nt_status
settings_take_interval(settings_parser *s, int *last)
{
    uint32_t *table = s->settings.roundup_power2_divisions;
    const settings_token size = settings_word(s);
    uint64_t mib = 0, divisions = 0;
    const bool rest = settings_is(size, ">");
    if (!rest && (!settings_number(size, &mib) || !settings_is_power2(mib))) {
        return settings_fail(s, size.at, "expected a power of 2 in MiB, or '>'");
    }
    const size_t at = s->at + 1;
    NT_TRY(settings_take_number(s, &divisions));
    if (!settings_is_power2(divisions) || divisions > UINT32_MAX) {
        return settings_fail(s, at, "divisions must be a power of 2");
    }
    int interval = 0;
    while (mib >> (interval + 1) != 0 && interval < NT_ROUNDUP_INTERVALS - 1) {
        interval++;
    }
    if (rest) {
        for (int i = *last + 1; i < NT_ROUNDUP_INTERVALS; i++) {
            table[i] = (uint32_t)divisions;
        }
        return NT_OK;
    }
    /* The first entry stands for smaller requests as well. */
    for (int i = *last < 0 ? 0 : interval; i <= interval; i++) {
        table[i] = (uint32_t)divisions;
    }
    *last = interval;
    return NT_OK;
}

/* One number for all sizes, or a list in brackets. */
static nt_status
settings_take_roundup(settings_parser *s)
{
    uint32_t *table = s->settings.roundup_power2_divisions;
    memset(table, 0, sizeof s->settings.roundup_power2_divisions);
    const size_t colon = s->at;
    NT_TRY(settings_colon(s));
    if (!settings_take(s, '[')) {
        s->at = colon;
        uint64_t divisions = 0;
        NT_TRY(settings_take_number(s, &divisions));
        if (!settings_is_power2(divisions) || divisions > UINT32_MAX) {
            return settings_fail(s, colon + 1, "divisions must be a power of 2");
        }
        for (int i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
            table[i] = (uint32_t)divisions;
        }
        return NT_OK;
    }
    int last = -1;
    do {
        NT_TRY(settings_take_interval(s, &last));
    } while (settings_take(s, ','));
    return settings_take(s, ']') ? NT_OK : settings_fail(s, s->at, "expected ',' or ']'");
}

static nt_status
settings_take_backend(settings_parser *s)
{
    NT_TRY(settings_colon(s));
    const settings_token word = settings_word(s);
    if (!settings_is(word, "native") && !settings_is(word, "cudaMallocAsync")) {
        return settings_fail(s, word.at, "backend is native or cudaMallocAsync");
    }
    s->settings.native_backend = settings_is(word, "native");
    return NT_OK;
}

/* Keys that have nothing to do with device memory: True, False or a number. */
static bool
settings_is_other_key(settings_token key)
{
    static const char *const names[] = {
        "release_lock_on_cudamalloc",     "release_lock_on_hipmalloc",
        "pinned_use_cuda_host_register",  "pinned_use_hip_host_register",
        "pinned_num_register_threads",    "pinned_use_background_threads",
        "pinned_reserve_segment_size_mb", "pinned_free_catch_all",
        "graph_capture_record_stream_reuse",
        "throw_on_cudamalloc_oom",        "expandable_segments_reserve",
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (settings_is(key, names[i])) {
            return true;
        }
    }
    return false;
}

static nt_status
settings_take_other(settings_parser *s)
{
    NT_TRY(settings_colon(s));
    const settings_token word = settings_word(s);
    uint64_t number;
    if (!settings_is(word, "True") && !settings_is(word, "False") &&
        !settings_number(word, &number)) {
        return settings_fail(s, word.at, "expected True, False or a whole number");
    }
    return NT_OK;
}

static nt_status
settings_take_pair(settings_parser *s)
{
    const settings_token key = settings_word(s);
    nt_settings *to = &s->settings;
    if (settings_is(key, "max_split_size_mb")) {
        return settings_take_mib(s, 20, &to->max_split_size,
                                 "max_split_size_mb must be at least 20");
    }
    if (settings_is(key, "max_non_split_rounding_mb")) {
        return settings_take_mib(s, 20, &to->max_non_split_rounding,
                                 "max_non_split_rounding_mb must be at least 20");
    }
    if (settings_is(key, "large_segment_size_mb")) {
        return settings_take_mib(s, 11, &to->large_segment_size,
                                 "large_segment_size_mb must be above 10");
    }
    if (settings_is(key, "garbage_collection_threshold")) {
        return settings_take_share(s, 0.99999999999, &to->garbage_collection_threshold,
                                   "garbage_collection_threshold is above 0 and below 1");
    }
    if (settings_is(key, "per_process_memory_fraction")) {
        return settings_take_share(s, 1.0, &to->per_process_memory_fraction,
                                   "per_process_memory_fraction is above 0 and at most 1");
    }
    if (settings_is(key, "expandable_segments")) {
        return settings_take_bool(s, &to->expandable_segments);
    }
    if (settings_is(key, "roundup_power2_divisions")) {
        return settings_take_roundup(s);
    }
    if (settings_is(key, "backend")) {
        return settings_take_backend(s);
    }
    if (settings_is_other_key(key)) {
        return settings_take_other(s);
    }
    return settings_fail(s, key.at, "unknown key; the legal ones are " SETTINGS_LEGAL);
}

nt_status
nt_settings_parse(const char *text, size_t length, nt_settings *out, nt_error *err)
{
    settings_parser s = {
        .text = text,
        .length = length,
        .settings = nt_settings_default(),
        .err = err,
    };
    settings_skip_blanks(&s);
    while (s.at < s.length) {
        NT_TRY(settings_take_pair(&s));
        settings_skip_blanks(&s);
        if (s.at < s.length && !settings_take(&s, ',')) {
            return settings_fail(&s, s.at, "expected ',' before the next key");
        }
    }
    *out = s.settings;
    return NT_OK;
}

/* What is written so far; `length` goes on counting when the buffer is full. */
typedef struct settings_writer {
    char *buffer;
    size_t size;
    size_t length;
} settings_writer;

static void
settings_put(settings_writer *w, const char *text)
{
    for (; *text != '\0'; text++, w->length++) {
        if (w->length + 1 < w->size) {
            w->buffer[w->length] = *text;
        }
    }
}

static void
settings_put_key(settings_writer *w, const char *key)
{
    if (w->length != 0) {
        settings_put(w, ",");
    }
    settings_put(w, key);
    settings_put(w, ":");
}

static void
settings_put_number(settings_writer *w, uint64_t number)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)number);
    settings_put(w, text);
}

static void
settings_put_mib(settings_writer *w, const char *key, uint64_t bytes)
{
    settings_put_key(w, key);
    settings_put_number(w, bytes / SETTINGS_MIB);
}

/* Written with integers, so that the process's locale plays no part. */
static void
settings_put_share(settings_writer *w, const char *key, double share)
{
    char text[32];
    const unsigned long parts = (unsigned long)(share * 1e6 + 0.5);
    int length = snprintf(text, sizeof text, "%lu.%06lu", parts / 1000000,
                          parts % 1000000);
    while (length > 0 && text[length - 1] == '0' && text[length - 2] != '.') {
        text[--length] = '\0';
    }
    settings_put_key(w, key);
    settings_put(w, text);
}

static void
settings_put_roundup(settings_writer *w, const uint32_t *table)
{
    bool any = false, same = true;
    for (int i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
        any = any || table[i] > 1;
        same = same && table[i] == table[0];
    }
    if (!any) {
        return;
    }
    settings_put_key(w, "roundup_power2_divisions");
    if (same) {
        settings_put_number(w, table[0]);
        return;
    }
    settings_put(w, "[");
    for (int i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
        settings_put(w, i == 0 ? "" : ",");
        settings_put_number(w, UINT64_C(1) << i);
        settings_put(w, ":");
        settings_put_number(w, table[i] == 0 ? 1 : table[i]);
    }
    settings_put(w, "]");
}

size_t
nt_settings_format(const nt_settings *settings, char *buffer, size_t size)
{
    const nt_settings usual = nt_settings_default();
    settings_writer w = {.buffer = buffer, .size = size};
    if (!settings->native_backend) {
        settings_put_key(&w, "backend");
        settings_put(&w, "cudaMallocAsync");
    }
    if (settings->expandable_segments) {
        settings_put_key(&w, "expandable_segments");
        settings_put(&w, "True");
    }
    if (settings->max_split_size != usual.max_split_size) {
        settings_put_mib(&w, "max_split_size_mb", settings->max_split_size);
    }
    if (settings->max_non_split_rounding != usual.max_non_split_rounding) {
        settings_put_mib(&w, "max_non_split_rounding_mb",
                         settings->max_non_split_rounding);
    }
    if (settings->large_segment_size != usual.large_segment_size) {
        settings_put_mib(&w, "large_segment_size_mb", settings->large_segment_size);
    }
    if (settings->garbage_collection_threshold > 0) {
        settings_put_share(&w, "garbage_collection_threshold",
                           settings->garbage_collection_threshold);
    }
    if (settings->per_process_memory_fraction < 1) {
        settings_put_share(&w, "per_process_memory_fraction",
                           settings->per_process_memory_fraction);
    }
    settings_put_roundup(&w, settings->roundup_power2_divisions);
    if (size != 0) {
        buffer[w.length < size ? w.length : size - 1] = '\0';
    }
    return w.length;
}
