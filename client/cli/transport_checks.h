// The checks of `eplbctl doctor` about the transport of expert rows.
#pragma once

#include <vector>

#include "client/cli/health_checks.h"

namespace eplb::cli {

// NCCL's own variables that change the speed or the path of rows, with their values when unset.
// docs/nccl-settings.md lists them with reasons and the source of each value.

inline constexpr char kNotSet[] = "not set";

struct NcclVariable {
  const char* name;
  const char* value_when_unset;  // kNotSet: the variable then changes nothing
};

// In the order of names, as ranks report those that are set.
inline constexpr NcclVariable kNcclVariables[] = {
    {"NCCL_BUFFSIZE", "4194304"},
    {"NCCL_CROSS_NIC", "2"},
    {"NCCL_IB_MERGE_NICS", "1"},
    {"NCCL_IB_QPS_PER_CONNECTION", "1"},
    {"NCCL_IB_SL", kNotSet},
    {"NCCL_IB_SPLIT_DATA_ON_QPS", "0"},
    {"NCCL_IB_TC", kNotSet},
    {"NCCL_LAUNCH_ORDER_IMPLICIT", "0"},
    {"NCCL_MAX_CTAS", kNotSet},
    {"NCCL_MAX_NCHANNELS", kNotSet},
    {"NCCL_MAX_P2P_NCHANNELS", "64"},
    {"NCCL_MIN_CTAS", kNotSet},
    {"NCCL_MIN_NCHANNELS", kNotSet},
    {"NCCL_MIN_P2P_NCHANNELS", "1"},
    {"NCCL_NCHANNELS_PER_NET_PEER", kNotSet},
    {"NCCL_NET", "by what is there"},
    {"NCCL_NET_GDR_LEVEL", "by topology"},
    {"NCCL_P2P_DISABLE", "0"},
    {"NCCL_P2P_NET_CHUNKSIZE", "131072"},
    {"NCCL_P2P_NVL_CHUNKSIZE", "524288"},
    {"NCCL_P2P_PCI_CHUNKSIZE", "131072"},
    {"NCCL_PXN_DISABLE", "0"},
    {"NCCL_RUNTIME_CONNECT", "1"},
};

// "transport": all ranks use the same one, and rows in GPU memory do not pass through host memory.
// "nccl", if NCCL carries rows: ranks agree on library and settings. All settings are shown, unset
// ones with NCCL's default. A setting that could be faster is a note, not a finding.
std::vector<Check> CheckTransport(const v1::JobStatus& job);

}  // namespace eplb::cli
