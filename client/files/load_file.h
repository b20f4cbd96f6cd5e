// Reads --load and --trace files, whatever their format.
#ifndef EPLB_CLIENT_FILES_LOAD_FILE_H_
#define EPLB_CLIENT_FILES_LOAD_FILE_H_

#include <string>

#include "absl/status/statusor.h"

#include "client/files/load_window.h"

namespace eplb {

// The format is told from the content: .npy by
// its magic, JSON by its first character.
// errors, beginning with `path` and of one line: as ReadRegularFile, ParseLoadJson and
// ParseLoadNpy.
absl::StatusOr<LoadFile> ReadLoadFile(const std::string& path);

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_LOAD_FILE_H_
