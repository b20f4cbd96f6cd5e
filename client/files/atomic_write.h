// Writes a file so that a reader sees the old content or the new one, never a part.
// threads: safe; of several that write one path one stays, whole.
#ifndef EPLB_CLIENT_FILES_ATOMIC_WRITE_H_
#define EPLB_CLIENT_FILES_ATOMIC_WRITE_H_

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace eplb {

// Writes a temporary file beside `path`, flushes it to the disk and renames it. Keeps the mode of a
// file that is replaced, else 0666 less the umask; replaces what a link leads to, not the link. On
// an error nothing is left behind and an old file stays as it was. errors, beginning with the path:
// InvalidArgument when `path` is a directory, a device or a pipe; Internal with the system's
// reason.
absl::Status WriteFileAtomically(const std::string& path, std::string_view content);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_ATOMIC_WRITE_H_
