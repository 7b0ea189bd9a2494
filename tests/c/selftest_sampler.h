/* SPDX-License-Identifier: Apache-2.0 */
/* A made-up source of the monitor's readings, whose devices do what pytest says. */
#ifndef SELFTEST_SAMPLER_H
#define SELFTEST_SAMPLER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

extern PyMethodDef selftest_sampler_methods[];

#endif
