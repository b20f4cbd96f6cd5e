// `eplbctl sweep`: what additional redundant slots would gain.
#ifndef EPLB_CLIENT_CLI_SWEEP_H_
#define EPLB_CLIENT_CLI_SWEEP_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "client/cli/command_tree.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/shape_options.h"

namespace eplb::cli {

struct SweepOptions {
  std::string load;
  LoadReading reading;
  ShapeOptions frame;
  std::string slots;  // A:B:STEP, A:B or A
  std::string window = "sum";
  std::string split = "equal";                    // equal, batch
  CostOptions costs{.expert_bytes = 88'080'384};  // DeepSeek-V3: 44.04 M parameters in bf16
  Format format = Format::kTable;
};

// Figures of the windows that are scored; absent without tokens.
struct SweepRow {
  int32_t slots = 0;
  std::optional<double> balancedness_mean;
  std::optional<double> balancedness_min;
  std::optional<double> bound_gap_mean;  // over layers with load
  double extra_slots_per_gpu = 0;
  // With --training, seconds of a step: for its tokens on the fullest GPUs (absent without tokens),
  // and for what replicas send.
  std::optional<double> token_seconds;
  double replica_seconds = 0;
};

// Exit 2 for bad flags, files and shapes.
Output RunSweep(const SweepOptions& options, const Terminal& terminal);

void AddSweep(const Flags& root);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_SWEEP_H_
