#include "client/cli/output.h"

namespace eplb::cli {

Output Failure(int exit_code, const absl::Status& status) {
  return {.exit_code = exit_code, .out = {}, .message = std::string(status.message())};
}

Output UsageFailure(const absl::Status& status) {
  return Failure(status.code() == absl::StatusCode::kInternal ? kError : kUsage, status);
}

std::string JoinMessages(const std::string& first, const std::string& second) {
  if (first.empty() || second.empty()) return first + second;
  return first + "; " + second;
}

}  // namespace eplb::cli
