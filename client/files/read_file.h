// Whole files into memory, and their lines.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_READ_FILE_H_
#define EPLB_CLIENT_FILES_READ_FILE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace eplb {

inline constexpr int64_t kMaxFileBytes = int64_t{1} << 31;

// The bytes of a regular file; a pipe or a device is refused, so that nothing blocks.
// errors, beginning with the path: NotFound; InvalidArgument for a directory, another kind of file,
// more than `max_bytes`, or a read error; PermissionDenied.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path,
                                            int64_t max_bytes = kMaxFileBytes);

struct TextLine {
  int64_t number = 0;  // counted from 1
  std::string_view text;
  bool has_newline = false;  // false only for a last line that was cut off, or never ended
};

// Lines of `text` that are not blank; a final carriage return is cut off. Views into `text`.
std::vector<TextLine> SplitLines(std::string_view text);

// The same error with "path: " or "path: line 3: " before its message; what was read as a text of
// one line says "line 1, column 5", of which the column stays.
absl::Status InFile(const std::string& path, const absl::Status& status);
absl::Status InLine(const std::string& path, int64_t line, const absl::Status& status);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_READ_FILE_H_
