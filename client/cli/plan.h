// `eplbctl plan`: computes a placement offline from a load file.
#ifndef EPLB_CLIENT_CLI_PLAN_H_
#define EPLB_CLIENT_CLI_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "client/cli/output.h"
#include "client/cli/terminal.h"
#include "placement/registry.h"

namespace eplb::cli {

struct PlanOptions {
  std::string load;
  std::string load_format;  // as ReadLoadFile; empty: the content tells
  int32_t gpus = 0;
  int32_t nodes = 1;
  int32_t groups = 1;
  std::optional<int32_t> slots;      // exactly one of the two
  std::optional<int32_t> redundant;  // slots = experts + redundant
  std::string policy{kDefaultPolicyName};
  std::string tie_break = "stable";      // stable, compat
  std::optional<std::string> hierarchy;  // strict, soft, none
  std::string previous;                  // path, may be empty
  std::string window = "sum";
  std::string out;  // path, may be empty
  Format format = Format::kTable;
  // Of policies that this one is not; each is refused by name unless it says the default.
  std::string effort = "default";
  std::string split = "equal";
  std::string gpu_speed;
  std::string unusable_gpus;
  bool allow_duplicates = false;
  std::optional<int32_t> max_moves_per_gpu;
};

// Reads the files, solves, writes --out, and only then gives the text for stdout. Exit 2 for bad
// flags, files and shapes; 1 when --out cannot be written.
Output RunPlan(const PlanOptions& options, const Terminal& terminal);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_PLAN_H_
