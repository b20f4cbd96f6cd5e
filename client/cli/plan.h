// `eplbctl plan`: computes a placement offline from a load file.
#ifndef EPLB_CLIENT_CLI_PLAN_H_
#define EPLB_CLIENT_CLI_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "client/cli/command_tree.h"
#include "client/cli/formats/load_file.h"
#include "client/cli/shape_options.h"

namespace eplb::cli {

struct PlanOptions {
  std::string load;
  LoadReading reading;
  ShapeOptions frame;
  SpeedOptions speeds;
  std::optional<int32_t> slots;      // exactly one of slots and redundant is given
  std::optional<int32_t> redundant;  // slots = experts + redundant
  std::string split = "equal";       // equal, optimal, batch
  std::string previous;              // path, may be empty
  std::string window = "sum";
  std::string out;  // path, may be empty
  Format format = Format::kTable;
};

// Reads the files, solves, writes --out, and returns text for stdout only after that. Exit 2 for
// bad flags, files and shapes; 1 if --out cannot be written.
Output RunPlan(const PlanOptions& options, const Terminal& terminal);

void AddPlan(const Flags& root);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_PLAN_H_
