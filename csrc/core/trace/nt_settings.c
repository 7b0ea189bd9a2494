/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_settings.h"

#include <stdio.h>

#define SETTINGS_MIB UINT64_C(1048576)

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

/* With the fewest digits that are read back as the same number (up to 15 are enough for
 * what was written with up to 15), 18 at most; and with integers, so that the process's
 * locale plays no part. */
static void
settings_put_share(settings_writer *w, const char *key, double share)
{
    uint64_t power = 10, parts = 0;
    int digits = 1;
    for (;; digits++, power *= 10) {
        parts = (uint64_t)(share * (double)power + 0.5);
        if (digits == 18 || (double)parts / (double)power == share) {
            break;
        }
    }
    /* Nothing above zero may turn into a zero, which is out of range. */
    parts += parts == 0 && share > 0;
    char text[48];
    (void)snprintf(text, sizeof text, "%llu.%0*llu",
                   (unsigned long long)(parts / power), digits,
                   (unsigned long long)(parts % power));
    settings_put_key(w, key);
    settings_put(w, text);
}

static void
settings_put_interval(settings_writer *w, size_t entry, uint32_t divisions)
{
    settings_put_number(w, UINT64_C(1) << entry);
    settings_put(w, ":");
    settings_put_number(w, divisions);
}

/* The shortest list: the first entry stands for all before it, `>` for all behind the
 * last, and what is not named is off. */
static void
settings_put_roundup(settings_writer *w, const uint32_t *table)
{
    uint32_t entries[NT_ROUNDUP_INTERVALS];
    const size_t end = NT_ROUNDUP_INTERVALS - 1;
    for (size_t i = 0; i <= end; i++) {
        entries[i] = table[i] == 0 ? 1 : table[i];
    }
    size_t first = 0, tail = end;
    while (first < end && entries[first + 1] == entries[0]) {
        first++;
    }
    while (tail > 0 && entries[tail - 1] == entries[end]) {
        tail--;
    }
    if (first == end && entries[0] == 1) {
        return;
    }
    settings_put_key(w, "roundup_power2_divisions");
    if (first == end) {
        settings_put_number(w, entries[0]);
        return;
    }
    settings_put(w, "[");
    settings_put_interval(w, first, entries[0]);
    for (size_t i = first + 1; i < tail; i++) {
        if (entries[i] > 1 || (i + 1 == tail && entries[end] > 1)) {
            settings_put(w, ",");
            settings_put_interval(w, i, entries[i]);
        }
    }
    if (entries[end] > 1) {
        settings_put(w, ",>:");
        settings_put_number(w, entries[end]);
    }
    settings_put(w, "]");
}

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
    if (settings->max_non_split_rounding != settings->large_segment_size) {
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

/* The keys that concern device memory, for the message about an unknown one. */
#define SETTINGS_LEGAL                                                                 \
    "max_split_size_mb, max_non_split_rounding_mb, garbage_collection_threshold, "     \
    "roundup_power2_divisions, expandable_segments, large_segment_size_mb, "           \
    "per_process_memory_fraction, backend"

/* The smallest value given for a size, in bytes, and where it stands. */
typedef struct settings_least {
    uint64_t bytes;
    size_t at;
} settings_least;

/* A cursor over the text. What two of the sizes must be at least depends on a third
 * that may come later, so that is looked at in the end. */
typedef struct settings_parser {
    const char *text;
    size_t length;
    size_t at;
    nt_settings settings;
    settings_least split, rounding;
    nt_error *err;
} settings_parser;

/* A piece of the text. White space in it means nothing, not even inside a word: so
 * PyTorch reads it. */
typedef struct settings_token {
    const char *text;
    size_t length;
    size_t at;
} settings_token;

static nt_status
settings_fail(settings_parser *s, size_t at, const char *what)
{
    return nt_fail(s->err, NT_ARGUMENT, at, "%s", what);
}

static bool
settings_is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool
settings_is_separator(char c)
{
    return c == ',' || c == ':' || c == '[' || c == ']';
}

static void
settings_skip_blanks(settings_parser *s)
{
    while (s->at < s->length && settings_is_blank(s->text[s->at])) {
        s->at++;
    }
}

/* Steps over `c` if it comes next. */
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
    while (word.length != 0 && settings_is_blank(word.text[word.length - 1])) {
        word.length--;
    }
    return word;
}

/* The colon behind a key, and the word behind it. */
static nt_status
settings_value(settings_parser *s, settings_token *out)
{
    if (!settings_take(s, ':')) {
        return settings_fail(s, s->at, "expected ':' and a value");
    }
    *out = settings_word(s);
    return NT_OK;
}

static bool
settings_is(settings_token word, const char *name)
{
    for (size_t i = 0; i < word.length; i++) {
        if (settings_is_blank(word.text[i])) {
            continue;
        }
        if (*name == '\0' || word.text[i] != *name) {
            return false;
        }
        name++;
    }
    return *name == '\0';
}

static bool
settings_number(settings_token word, uint64_t *out)
{
    uint64_t number = 0;
    bool any = false;
    for (size_t i = 0; i < word.length; i++) {
        const char c = word.text[i];
        if (settings_is_blank(c)) {
            continue;
        }
        if (c < '0' || c > '9' || number > (UINT64_MAX - (uint64_t)(c - '0')) / 10) {
            return false;
        }
        number = number * 10 + (uint64_t)(c - '0');
        any = true;
    }
    *out = number;
    return any;
}

static nt_status
settings_take_number(settings_parser *s, uint64_t *out, size_t *at)
{
    settings_token word;
    NT_TRY(settings_value(s, &word));
    *at = word.at;
    return settings_number(word, out)
               ? NT_OK
               : settings_fail(s, word.at, "expected a whole number");
}

/* A size in MiB; what no 64 bits can hold in bytes is cut to what they can. */
static nt_status
settings_take_mib(settings_parser *s, uint64_t *bytes, settings_least *least)
{
    uint64_t number = 0;
    size_t at = 0;
    NT_TRY(settings_take_number(s, &number, &at));
    const uint64_t most = UINT64_MAX / SETTINGS_MIB;
    *bytes = (number < most ? number : most) * SETTINGS_MIB;
    if (*bytes < least->bytes) {
        *least = (settings_least){*bytes, at};
    }
    return NT_OK;
}

static nt_status
settings_take_split(settings_parser *s)
{
    return settings_take_mib(s, &s->settings.max_split_size, &s->split);
}

static nt_status
settings_take_rounding(settings_parser *s)
{
    return settings_take_mib(s, &s->settings.max_non_split_rounding, &s->rounding);
}

static nt_status
settings_take_segment(settings_parser *s)
{
    settings_least least = {.bytes = UINT64_MAX};
    NT_TRY(settings_take_mib(s, &s->settings.large_segment_size, &least));
    return least.bytes > 10 * SETTINGS_MIB
               ? NT_OK
               : settings_fail(s, least.at, "large_segment_size_mb must be above 10");
}

/* 10 to the power of `exponent`, exact up to 22. */
static double
settings_power10(int64_t exponent)
{
    double power = 1;
    for (int64_t i = 0; i < exponent && i < 22; i++) {
        power *= 10;
    }
    return power;
}

/* The digits behind an `e`, with their sign; false where there are none. */
static bool
settings_exponent(const char *text, size_t length, int64_t *out)
{
    int64_t exponent = 0;
    bool negative = false, sign = false, any = false;
    for (size_t i = 0; i < length; i++) {
        const char c = text[i];
        if (settings_is_blank(c)) {
            continue;
        }
        if ((c == '-' || c == '+') && !sign && !any) {
            sign = true;
            negative = c == '-';
        } else if (c >= '0' && c <= '9') {
            any = true;
            /* Six digits are more than any number of digits in front can need. */
            exponent = exponent < 100000 ? exponent * 10 + (c - '0') : exponent;
        } else {
            return false;
        }
    }
    *out = negative ? -exponent : exponent;
    return any;
}

/* `digits` times 10 to the power of `scale`. */
static double
settings_scale(uint64_t digits, int64_t scale)
{
    double number = (double)digits * settings_power10(scale);
    for (; scale < 0 && number > 0; scale += 22) {
        number /= settings_power10(-scale);
    }
    return number;
}

/* A decimal fraction. The C library's reader would ask the process's locale what a
 * decimal point is, so it plays no part here. */
static bool
settings_decimal(settings_token word, double *out)
{
    uint64_t digits = 0;
    int64_t scale = 0, exponent = 0;
    bool point = false, any = false;
    size_t i = 0;
    for (; i < word.length; i++) {
        const char c = word.text[i];
        if (c == '.' && !point) {
            point = true;
        } else if (c >= '0' && c <= '9') {
            any = true;
            /* 18 digits are more than a double holds: later ones only count. */
            const bool kept = digits < UINT64_C(100000000000000000);
            digits = kept ? digits * 10 + (uint64_t)(c - '0') : digits;
            scale += kept ? -(int64_t)point : !point;
        } else if (!settings_is_blank(c)) {
            break;
        }
    }
    if (i < word.length) {
        const bool is_e = word.text[i] == 'e' || word.text[i] == 'E';
        i++;
        if (!is_e || !settings_exponent(word.text + i, word.length - i, &exponent)) {
            return false;
        }
    }
    *out = settings_scale(digits, scale + exponent);
    return any;
}

static nt_status
settings_take_threshold(settings_parser *s)
{
    settings_token word;
    double number;
    NT_TRY(settings_value(s, &word));
    if (!settings_decimal(word, &number) || number <= 0 || number >= 1) {
        return settings_fail(
            s, word.at, "garbage_collection_threshold must be above 0 and below 1");
    }
    s->settings.garbage_collection_threshold = number;
    return NT_OK;
}

static nt_status
settings_take_fraction(settings_parser *s)
{
    settings_token word;
    double number;
    NT_TRY(settings_value(s, &word));
    if (!settings_decimal(word, &number) || number > 1) {
        return settings_fail(s, word.at,
                             "per_process_memory_fraction must be from 0 to 1");
    }
    s->settings.per_process_memory_fraction = number;
    return NT_OK;
}

static nt_status
settings_take_switch(settings_parser *s, bool *out)
{
    settings_token word;
    NT_TRY(settings_value(s, &word));
    *out = settings_is(word, "True");
    return *out || settings_is(word, "False")
               ? NT_OK
               : settings_fail(s, word.at, "expected True or False");
}

static nt_status
settings_take_expandable(settings_parser *s)
{
    return settings_take_switch(s, &s->settings.expandable_segments);
}

static bool
settings_is_power2(uint64_t number)
{
    return number != 0 && (number & (number - 1)) == 0;
}

/* Divisions behind a colon. Above 2^31 they concern requests of a TiB and more. */
static nt_status
settings_take_divisions(settings_parser *s, bool may_be_zero, uint32_t *out)
{
    uint64_t number = 0;
    size_t at = 0;
    NT_TRY(settings_take_number(s, &number, &at));
    if ((number != 0 || !may_be_zero) &&
        (!settings_is_power2(number) || number > UINT32_MAX)) {
        return settings_fail(s, at, "divisions must be a power of 2, at most 2^31");
    }
    *out = (uint32_t)number;
    return NT_OK;
}

/* How far a list of intervals has come. */
typedef struct settings_list {
    size_t last; /* entry named last */
    bool any;    /* one was named */
} settings_list;

/* One `MiB:divisions` of a list. The first one stands for smaller requests as well, and
 * `>` for all that are larger than the interval named last. */
static nt_status
settings_take_interval(settings_parser *s, settings_list *list)
{
    uint32_t *table = s->settings.roundup_power2_divisions;
    const settings_token size = settings_word(s);
    const bool is_rest = settings_is(size, ">");
    uint64_t mib = 0;
    uint32_t divisions = 0;
    if (!is_rest && (!settings_number(size, &mib) || !settings_is_power2(mib))) {
        return settings_fail(s, size.at, "expected a power of 2 in MiB, or '>'");
    }
    NT_TRY(settings_take_divisions(s, true, &divisions));
    if (is_rest) {
        for (size_t i = list->last + 1; i < NT_ROUNDUP_INTERVALS; i++) {
            table[i] = divisions;
        }
        return NT_OK;
    }
    size_t entry = 0;
    while (entry + 1 < NT_ROUNDUP_INTERVALS && mib >> (entry + 1) != 0) {
        entry++;
    }
    for (size_t i = list->any ? entry : 0; i <= entry; i++) {
        table[i] = divisions;
    }
    *list = (settings_list){.last = entry, .any = true};
    return NT_OK;
}

/* One number for all sizes, or a list in brackets. */
static nt_status
settings_take_roundup(settings_parser *s)
{
    const size_t colon = s->at;
    uint32_t divisions = 0;
    if (!settings_take(s, ':') || !settings_take(s, '[')) {
        s->at = colon;
        NT_TRY(settings_take_divisions(s, false, &divisions));
        for (size_t i = 0; i < NT_ROUNDUP_INTERVALS; i++) {
            s->settings.roundup_power2_divisions[i] = divisions;
        }
        return NT_OK;
    }
    settings_list list = {0};
    bool more = true;
    while (!settings_take(s, ']')) {
        if (!more) {
            return settings_fail(s, s->at, "expected ',' or ']'");
        }
        NT_TRY(settings_take_interval(s, &list));
        more = settings_take(s, ',');
    }
    return NT_OK;
}

static nt_status
settings_take_backend(settings_parser *s)
{
    settings_token word;
    NT_TRY(settings_value(s, &word));
    s->settings.native_backend = settings_is(word, "native");
    if (!s->settings.native_backend && !settings_is(word, "cudaMallocAsync") &&
        !settings_is(word, "hipMallocAsync")) {
        return settings_fail(s, word.at, "backend must be native or cudaMallocAsync");
    }
    return NT_OK;
}

/* The values of keys that change nothing in device memory are only looked at. */
static nt_status
settings_check_switch(settings_parser *s)
{
    bool ignored;
    return settings_take_switch(s, &ignored);
}

static nt_status
settings_check_number(settings_parser *s)
{
    uint64_t ignored;
    size_t at;
    return settings_take_number(s, &ignored, &at);
}

static nt_status
settings_check_threads(settings_parser *s)
{
    uint64_t number = 0;
    size_t at = 0;
    NT_TRY(settings_take_number(s, &number, &at));
    return settings_is_power2(number) && number <= 128
               ? NT_OK
               : settings_fail(s, at, "expected a power of 2, at most 128");
}

static nt_status
settings_check_positive(settings_parser *s)
{
    uint64_t number = 0;
    size_t at = 0;
    NT_TRY(settings_take_number(s, &number, &at));
    return number != 0 ? NT_OK : settings_fail(s, at, "expected a number above 0");
}

/* How much address space is set aside: PyTorch lets a value that it can't read pass. */
static nt_status
settings_check_reserve(settings_parser *s)
{
    settings_token word;
    NT_TRY(settings_value(s, &word));
    return word.length != 0 ? NT_OK : settings_fail(s, word.at, "expected a value");
}

static nt_status
settings_check_reserves(settings_parser *s)
{
    if (!settings_take(s, ':') || !settings_take(s, '[')) {
        return settings_fail(s, s->at, "expected ':' and a list in brackets");
    }
    while (!settings_take(s, ']')) {
        (void)settings_word(s);
        NT_TRY(settings_check_reserve(s));
        (void)settings_take(s, ',');
    }
    return NT_OK;
}

static const struct settings_key {
    const char *name;
    nt_status (*take)(settings_parser *s);
} settings_keys[] = {
    {"max_split_size_mb", settings_take_split},
    {"max_non_split_rounding_mb", settings_take_rounding},
    {"garbage_collection_threshold", settings_take_threshold},
    {"roundup_power2_divisions", settings_take_roundup},
    {"expandable_segments", settings_take_expandable},
    {"large_segment_size_mb", settings_take_segment},
    {"per_process_memory_fraction", settings_take_fraction},
    {"backend", settings_take_backend},
    {"release_lock_on_cudamalloc", settings_check_switch},
    {"release_lock_on_hipmalloc", settings_check_switch},
    {"pinned_use_cuda_host_register", settings_check_switch},
    {"pinned_use_hip_host_register", settings_check_switch},
    {"pinned_use_background_threads", settings_check_switch},
    {"pinned_free_catch_all", settings_check_switch},
    {"pinned_num_register_threads", settings_check_threads},
    {"pinned_reserve_segment_size_mb", settings_check_positive},
    {"pinned_max_round_threshold_mb", settings_check_number},
    {"pinned_max_cached_size_mb", settings_check_number},
    {"graph_capture_record_stream_reuse", settings_check_switch},
    {"throw_on_cudamalloc_oom", settings_check_switch},
    {"expandable_segments_reserve", settings_check_reserve},
    {"expandable_segments_reserve_by_class", settings_check_reserves},
};

static nt_status
settings_take_pair(settings_parser *s)
{
    const settings_token key = settings_word(s);
    for (size_t i = 0; i < sizeof settings_keys / sizeof *settings_keys; i++) {
        if (settings_is(key, settings_keys[i].name)) {
            return settings_keys[i].take(s);
        }
    }
    return settings_fail(s, key.at, "unknown key; for device memory: " SETTINGS_LEGAL);
}

static nt_status
settings_check_least(settings_parser *s, settings_least given, const char *key)
{
    const uint64_t least = s->settings.large_segment_size;
    return given.bytes >= least
               ? NT_OK
               : nt_fail(s->err, NT_ARGUMENT, given.at,
                         "%s must be at least %llu, the size of a large segment", key,
                         (unsigned long long)(least / SETTINGS_MIB));
}

nt_status
nt_settings_parse(const char *text, size_t length, nt_settings *out, nt_error *err)
{
    settings_parser s = {
        .text = text,
        .length = length,
        .settings = nt_settings_default(),
        .split = {.bytes = UINT64_MAX},
        .rounding = {.bytes = UINT64_MAX},
        .err = err,
    };
    settings_skip_blanks(&s);
    while (s.at < s.length) {
        NT_TRY(settings_take_pair(&s));
        if (!settings_take(&s, ',') && s.at < s.length) {
            return settings_fail(&s, s.at, "expected ',' before the next key");
        }
        settings_skip_blanks(&s);
    }
    NT_TRY(settings_check_least(&s, s.split, "max_split_size_mb"));
    NT_TRY(settings_check_least(&s, s.rounding, "max_non_split_rounding_mb"));
    if (s.rounding.bytes == UINT64_MAX) {
        s.settings.max_non_split_rounding = s.settings.large_segment_size;
    }
    *out = s.settings;
    return NT_OK;
}
