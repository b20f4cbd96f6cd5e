// `eplbctl lint`: says every rule that a placement file breaks.
#ifndef EPLB_CLIENT_CLI_LINT_H_
#define EPLB_CLIENT_CLI_LINT_H_

#include <string>

#include "client/cli/flags.h"
#include "client/cli/output.h"

namespace eplb::cli {

struct LintOptions {
  std::string placement;
  std::string load;  // path, may be empty: layers and experts must be the same
  LoadReading reading;
  std::string against;  // path of another placement, may be empty: the shape must be the same
  bool strict = false;  // duplicates on a GPU break a rule
};

// One broken rule a line on stdout, beginning with the file's name; warnings begin with "warning:".
// Exit 8 when a rule is broken, 0 when none, 2 when a file cannot be read as what it should be.
Output RunLint(const LintOptions& options);

void AddLint(CLI::App& root, Command& command);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_LINT_H_
