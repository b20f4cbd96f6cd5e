// `eplbctl plan`: computes a placement offline from a load file.
#ifndef EPLB_CLIENT_CLI_PLAN_H_
#define EPLB_CLIENT_CLI_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "client/cli/flags.h"
#include "client/cli/frame.h"
#include "client/cli/output.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

struct PlanOptions {
  std::string load;
  LoadReading reading;
  FrameOptions frame;
  SpeedOptions speeds;
  std::optional<int32_t> slots;      // exactly one of the two
  std::optional<int32_t> redundant;  // slots = experts + redundant
  std::string split = "equal";       // equal, optimal
  std::string previous;              // path, may be empty
  std::string window = "sum";
  std::string out;  // path, may be empty
  Format format = Format::kTable;
};

// Reads the files, solves, writes --out, and only then gives the text for stdout. Exit 2 for bad
// flags, files and shapes; 1 when --out cannot be written.
Output RunPlan(const PlanOptions& options, const Terminal& terminal);

void AddPlan(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_PLAN_H_
