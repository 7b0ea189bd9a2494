/* SPDX-License-Identifier: Apache-2.0 */
#include "trace/nt_value.h"

#include "nt_test.h"

static nt_values *
values_new(nt_test *t, const nt_alloc *alloc)
{
    nt_values *values = NULL;
    NT_CHECK_OK(nt_values_new(alloc, &values, NULL), NULL);
    return values;
}

NT_TEST(integers_come_back_as_they_were)
{
    static const int64_t numbers[] = {
        0,         1,         -1,        INT64_MAX,    INT64_MIN,
        1LL << 58, 1LL << 59, 1LL << 60, -(1LL << 59), -(1LL << 59) - 1,
    };
    const nt_alloc alloc = nt_alloc_system();
    nt_values *values = values_new(t, &alloc);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        nt_value value = 0;
        uint64_t bits = 0;
        NT_CHECK_OK(nt_values_integer(values, (uint64_t)numbers[i], numbers[i] < 0,
                                      true, &value, NULL),
                    NULL);
        NT_CHECK(nt_values_get_integer(values, value, &bits));
        NT_CHECK_INT((int64_t)bits, numbers[i]);
    }
    nt_value wide = 0;
    uint64_t bits = 7;
    NT_CHECK_OK(nt_values_integer(values, 5, false, false, &wide, NULL), NULL);
    NT_CHECK(!nt_values_get_integer(values, wide, &bits));
    NT_CHECK(!nt_values_get_integer(values, nt_value_make(NT_VALUE_STRING, 3), &bits));
    nt_values_free(values);
}

NT_TEST(records_counting_up_are_one_run)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_values *values = values_new(t, &alloc);
    nt_value list = 0;
    NT_CHECK_OK(nt_values_container(values, NT_VALUE_LIST, &list, NULL), NULL);
    for (uint64_t id = 10; id < 1000; id++) {
        NT_CHECK_OK(
            nt_values_append(values, list, nt_value_make(NT_VALUE_RECORD, id), 1, NULL),
            NULL);
    }
    NT_CHECK_OK(
        nt_values_append(values, list, nt_value_make(NT_VALUE_RECORD, 5), 3, NULL),
        NULL);
    size_t count;
    const nt_value_pair *runs = nt_values_pairs(values, list, &count);
    NT_REQUIRE(NT_CHECK_UINT(count, 2));
    NT_CHECK_UINT(nt_value_id(runs[0].first), 10);
    NT_CHECK_UINT(runs[0].second, 990);
    NT_CHECK_UINT(runs[1].second, 3);
    nt_values_free(values);
}

NT_TEST(last_of_equal_keys_counts)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_values *values = values_new(t, &alloc);
    nt_value dict = 0;
    const nt_value key = nt_value_make(NT_VALUE_STRING, 4);
    NT_CHECK_OK(nt_values_container(values, NT_VALUE_DICT, &dict, NULL), NULL);
    NT_CHECK_OK(nt_values_set(values, dict, key, nt_value_make(NT_VALUE_INT, 1), NULL),
                NULL);
    NT_CHECK_OK(nt_values_set(values, dict, key, nt_value_make(NT_VALUE_INT, 2), NULL),
                NULL);
    NT_CHECK_UINT(nt_values_lookup(values, dict, 4), nt_value_make(NT_VALUE_INT, 2));
    NT_CHECK_UINT(nt_values_lookup(values, dict, 5), NT_VALUE_ABSENT);
    NT_CHECK_UINT(nt_values_lookup(values, key, 5), NT_VALUE_ABSENT);
    nt_values_free(values);
}

NT_TEST(counted_containers_stay_so)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_values *values = values_new(t, &alloc);
    const nt_value key = nt_value_make(NT_VALUE_STRING, 4);
    nt_value dict = 0;
    NT_CHECK_OK(nt_values_container(values, NT_VALUE_DICT, &dict, NULL), NULL);
    NT_CHECK(!nt_values_is_counted(values, dict));
    nt_values_set_counted(values, dict);
    NT_CHECK_OK(nt_values_set(values, dict, key, key, NULL), NULL);
    nt_values_set_judged(values, dict);
    NT_CHECK(nt_values_is_counted(values, dict));
    nt_values_free(values);
}

NT_TEST(exchanged_containers_can_not_change)
{
    const nt_alloc alloc = nt_alloc_system();
    nt_values *values = values_new(t, &alloc);
    nt_value list = 0;
    nt_error err = {0};
    const nt_value by = nt_value_make(NT_VALUE_SEQUENCE, 9);
    NT_CHECK_OK(nt_values_container(values, NT_VALUE_LIST, &list, NULL), NULL);
    NT_CHECK_UINT(nt_values_resolve(values, list), list);
    NT_CHECK_OK(nt_values_append(values, list, by, 1, NULL), NULL);
    NT_CHECK_UINT(nt_values_judged_count(values, list), 0);
    nt_values_set_judged(values, list);
    NT_CHECK_UINT(nt_values_judged_count(values, list), 1);
    NT_CHECK_OK(nt_values_append(values, list, by, 1, NULL), NULL);
    NT_CHECK_UINT(nt_values_judged_count(values, list), 1);
    nt_values_exchange(values, list, by);
    NT_CHECK_UINT(nt_values_resolve(values, list), by);
    NT_CHECK_STATUS(nt_values_append(values, list, by, 1, &err), NT_MALFORMED, &err);
    nt_values_free(values);
}

static nt_status
value_body(nt_test *t, const nt_alloc *alloc, void *ctx)
{
    (void)t;
    (void)ctx;
    nt_values *values = NULL;
    nt_status status = nt_values_new(alloc, &values, NULL);
    nt_value list = 0, number = 0, tuple = 0;
    for (uint64_t i = 0; status == NT_OK && i < 40; i++) {
        const nt_value items[2] = {nt_value_make(NT_VALUE_INT, i),
                                   nt_value_make(NT_VALUE_INT, i % 3)};
        status = nt_values_container(values, NT_VALUE_LIST, &list, NULL);
        if (status == NT_OK) {
            status =
                nt_values_integer(values, UINT64_MAX - i, false, true, &number, NULL);
        }
        if (status == NT_OK) {
            status = nt_values_append(values, list, number, 1, NULL);
        }
        if (status == NT_OK) {
            status = nt_values_tuple(values, items, 2, &tuple, NULL);
        }
        if (status == NT_OK) {
            status = nt_values_float(values, 0.5, &number, NULL);
        }
    }
    nt_values_free(values);
    return status;
}

NT_TEST(values_survive_running_out_of_memory)
{
    nt_test_sweep(t, value_body, NULL);
}

const nt_test_case nt_value_tests[] = {
    NT_CASE(integers_come_back_as_they_were),
    NT_CASE(records_counting_up_are_one_run),
    NT_CASE(last_of_equal_keys_counts),
    NT_CASE(counted_containers_stay_so),
    NT_CASE(exchanged_containers_can_not_change),
    NT_CASE(values_survive_running_out_of_memory),
    NT_CASES_END,
};
