// `eplbctl explain`: why the placement is as it is.
#pragma once

#include <cstdint>
#include <string>

#include "client/cli/command_tree.h"
#include "client/cli/query_client.h"

namespace eplb::cli {

struct ExplainOptions {
  QueryOptions query;
  std::string job;      // empty: the only one
  int32_t layer = -1;   // one layer's GPUs; < 0: all layers
  int32_t expert = -1;  // one expert of --layer
};

// The job: its state, its settings, the decision behind the current placement, the newest decision,
// the candidates that its policy chooses among, its worst layers. A layer: its GPUs' loads before
// and after that decision, and what moved. An expert: its load, its replicas and their GPUs.
// JSON: ExplanationToJson in explain.cc.
Output RunExplain(const ExplainOptions& options, const Terminal& terminal);

}  // namespace eplb::cli
