// Whole files, read with a limit and written so that a reader sees the old or the new one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace eplb {

inline constexpr int64_t kMaxFileBytes = int64_t{1} << 31;

// Returns the bytes of a regular file. Rejects pipes and devices, so that no call blocks.
// errors, beginning with the path: NotFound; InvalidArgument for a directory, another kind of file,
// more than `max_bytes`, or a read error; PermissionDenied.
absl::StatusOr<std::string> ReadRegularFile(const std::string& path,
                                            int64_t max_bytes = kMaxFileBytes);

struct TextLine {
  int64_t number = 0;  // counted from 1
  std::string_view text;
  bool has_newline = false;  // false only for a last line that was cut off, or never ended
};

// Returns the lines of `text` that are not blank, without a final carriage return. Views into
// `text`.
std::vector<TextLine> SplitLines(std::string_view text);

// Returns the error with "path: " or "path: line 3: " before its message. A text of one line
// reports "line 1, column 5", of which the column stays.
absl::Status InFile(const std::string& path, const absl::Status& status);
template <class Value>
absl::StatusOr<Value> InFile(const std::string& path, absl::StatusOr<Value> value) {
  if (value.ok()) return value;
  return InFile(path, value.status());
}
absl::Status InLine(const std::string& path, int64_t line, const absl::Status& status);

// Writes a file so that a reader sees the old content or the new one, never a part: writes a
// temporary file in the same folder, flushes it to the disk and renames it. A file that is replaced
// keeps its mode; a new one has 0666 less the umask. The target of a link is replaced, not the
// link. After an error the old file is unchanged, and no other file is left. If several threads
// write one path, one content remains, whole. errors, beginning with the path: InvalidArgument if
// `path` is a directory, a device or a pipe; Internal with the system's reason.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content);

}  // namespace eplb
