// `eplbctl lint`: lists every rule that a placement file breaks.
#ifndef EPLB_CLIENT_CLI_LINT_H_
#define EPLB_CLIENT_CLI_LINT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "client/cli/command_tree.h"
#include "client/cli/formats/load_file.h"

namespace eplb::cli {

struct LintOptions {
  std::string placement;
  std::optional<int32_t> gpus;  // number of GPUs, for another system's file without one
  std::string load;             // path, may be empty: layers and experts must be the same
  LoadReading reading;
  std::string against;  // path of another placement, may be empty: the shape must be the same
  bool strict = false;  // duplicates on a GPU break a rule
};

// One broken rule per line on stdout, beginning with the file's name; warnings begin with
// "warning:".
// Exit 8 if a rule is broken, 0 if none, 2 if a file cannot be read as what it should be.
Output RunLint(const LintOptions& options);

void AddLint(const Flags& root);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_LINT_H_
