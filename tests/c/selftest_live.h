/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A made-up shim for tests/hooks/test_tail.py: rings that Python fills event by
 * event or a thread fills by itself, and a layout that Python tells.
 */
#ifndef SELFTEST_LIVE_H
#define SELFTEST_LIVE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef selftest_live_methods[];

#endif
