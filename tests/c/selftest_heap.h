/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heap walk and the watch of the garbage collector, as pytest needs them: a
 * subscriber that writes down every prediction, can hold finalizers off and can fail.
 */
#ifndef SELFTEST_HEAP_H
#define SELFTEST_HEAP_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef selftest_heap_methods[];

#endif
