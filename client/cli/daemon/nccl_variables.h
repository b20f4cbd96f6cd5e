// NCCL's own variables that change how fast or on which way rows move, with what holds where they
// are not set: as docs/nccl-settings.md lists them, which says why and where each value is from.
#ifndef EPLB_CLIENT_CLI_DAEMON_NCCL_VARIABLES_H_
#define EPLB_CLIENT_CLI_DAEMON_NCCL_VARIABLES_H_

namespace eplb::cli {

inline constexpr char kNotSet[] = "not set";

struct NcclVariable {
  const char* name;
  const char* value_when_unset;  // kNotSet: it then changes nothing
};

// By name, as ranks tell those that are set.
inline constexpr NcclVariable kNcclVariables[] = {
    {"NCCL_CROSS_NIC", "2"},
    {"NCCL_IB_MERGE_NICS", "1"},
    {"NCCL_IB_QPS_PER_CONNECTION", "1"},
    {"NCCL_IB_SL", kNotSet},
    {"NCCL_IB_SPLIT_DATA_ON_QPS", "0"},
    {"NCCL_IB_TC", kNotSet},
    {"NCCL_NET", "by what is there"},
    {"NCCL_NET_GDR_LEVEL", "by topology"},
    {"NCCL_P2P_DISABLE", "0"},
    {"NCCL_PXN_DISABLE", "0"},
    {"NCCL_RUNTIME_CONNECT", "1"},
};

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_DAEMON_NCCL_VARIABLES_H_
