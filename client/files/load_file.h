// Reads --load and --trace files, whatever their format.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FILES_LOAD_FILE_H_
#define EPLB_CLIENT_FILES_LOAD_FILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/files/load_window.h"

namespace eplb {

// `format` is empty, or one of LoadFormatNames(). When it is empty the content tells: a directory
// with meta_info.json, the magic of .npy and .npz, JSON by its keys, CSV of numbers.
// errors, beginning with `path` and of one line: as ReadRegularFile, ParseLoadJson and
// ParseLoadNpy; InvalidArgument for a format of another name and for a dump of torch.save, which
// only the Python package reads.
absl::StatusOr<LoadFile> ReadLoadFile(const std::string& path, std::string_view format = {});

std::vector<std::string> LoadFormatNames();

}  // namespace eplb

#endif  // EPLB_CLIENT_FILES_LOAD_FILE_H_
