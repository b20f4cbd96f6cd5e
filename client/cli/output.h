// What a command did, as a value: commands print nothing themselves.
#ifndef EPLB_CLIENT_CLI_OUTPUT_H_
#define EPLB_CLIENT_CLI_OUTPUT_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace eplb::cli {

// Scripts rely on these numbers.
enum ExitCode : int {
  kOk = 0,
  kError = 1,
  kUsage = 2,  // wrong flags or unusable input
  kUnreachable = 3,
  kDenied = 4,
  kNotFound = 5,
  kConflict = 6,
  kTimeout = 7,
  kConditionNotMet = 8,
};

struct Output {
  int exit_code = kOk;
  std::string out;                           // data, for stdout
  std::string message;                       // for stderr, one line without newline; empty: none
  std::optional<absl::Duration> again = {};  // run the command anew after so long (--watch)
  bool lines = false;  // what is printed again and again are lines for a program, not a screen
};

enum class Format { kTable, kJson };

// Nothing on stdout, one line on stderr.
Output Failure(int exit_code, const absl::Status& status);
// Of files and flags: everything is exit 2 but Internal, a bug of ours, which is exit 1.
Output UsageFailure(const absl::Status& status);

// Both as one message, of which either may be empty.
std::string JoinMessages(const std::string& first, const std::string& second);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_OUTPUT_H_
