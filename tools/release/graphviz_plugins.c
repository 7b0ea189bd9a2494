/* SPDX-License-Identifier: Apache-2.0 */
/* The plugins of the Graphviz in wheels: nothing is looked up in files. */
#include "gvplugin.h"
#include "gvplugin_layout.h"

extern void
sfdp_layout(graph_t *g);
extern void
sfdp_cleanup(graph_t *g);
extern gvplugin_library_t gvplugin_core_LTX_library;
extern gvplugin_library_t gvplugin_dot_layout_LTX_library;

static gvlayout_engine_t sfdp_engine = {sfdp_layout, sfdp_cleanup};
static gvlayout_features_t sfdp_features = {0};
static gvplugin_installed_t sfdp_types[] = {
    {0, "sfdp", 0, &sfdp_engine, &sfdp_features},
    {0, NULL, 0, NULL, NULL},
};
static gvplugin_api_t sfdp_apis[] = {{API_layout, sfdp_types}, {(api_t)0, NULL}};
static gvplugin_library_t sfdp_library = {"sfdp_layout", sfdp_apis};

lt_symlist_t nt_gv_plugins[] = {
    {"gvplugin_core_LTX_library", &gvplugin_core_LTX_library},
    {"gvplugin_dot_layout_LTX_library", &gvplugin_dot_layout_LTX_library},
    {"gvplugin_sfdp_layout_LTX_library", &sfdp_library},
    {NULL, NULL},
};
