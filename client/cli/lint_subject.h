// The placement file that `eplbctl lint` checks.
#ifndef EPLB_CLIENT_CLI_LINT_SUBJECT_H_
#define EPLB_CLIENT_CLI_LINT_SUBJECT_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "base/json_value.h"
#include "client/cli/formats/format_table.h"

namespace eplb::cli {

// A file of ours as written, or one of another system as its reader understands it.
struct LintSubject {
  eplb::PlacementFormat format;
  wire::JsonValue object;      // a file of ours, however broken
  eplb::PlacementParts peers;  // a file of another system

  bool is_ours() const { return format.name == "eplb"; }
  // Number of experts in another system's file. An id from S on is no expert's.
  int64_t num_experts() const;
  // A number of the shape, by its key in our files. errors: InvalidArgument if one of ours cannot
  // be read, NotFound if another system's file does not have the number.
  absl::StatusOr<int64_t> ShapeNumber(std::string_view key) const;
};

// The content tells the format. errors: InvalidArgument, beginning with `path`.
absl::StatusOr<LintSubject> ReadLintSubject(const std::string& path);

}  // namespace eplb::cli

#endif  // EPLB_CLIENT_CLI_LINT_SUBJECT_H_
