// Reads --load and --trace files, whatever their format.
// threads: safe, no state.
#ifndef EPLB_CLIENT_FORMATS_LOAD_FILE_H_
#define EPLB_CLIENT_FORMATS_LOAD_FILE_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "client/formats/load_window.h"

namespace eplb {

struct LoadReading {
  std::string format = {};  // empty: the content tells; else one of LoadFormatNames()
  // Of a load of sglang: that many rows in front belong to dense layers and are left out.
  std::optional<int32_t> first_layer = {};
};

// Without a format the content tells: a directory with meta_info.json, the magic of .npy and .npz,
// JSON by its keys, CSV of numbers. LoadFile::notes says what was skipped, and which rows of a load
// of sglang look like dense layers when first_layer is not given.
// errors, beginning with `path` and of one line: as ReadRegularFile, ParseLoadJson and
// ParseLoadNpy; InvalidArgument for a format of another name and for a dump of torch.save, which
// only the Python package reads; for first_layer with a load of another system.
absl::StatusOr<LoadFile> ReadLoadFile(const std::string& path, const LoadReading& reading = {});

// The notes as one line for stderr, beginning with "note: "; empty without any.
std::string NotesOn(const std::string& path, const LoadFile& file);

std::vector<std::string> LoadFormatNames();

}  // namespace eplb

#endif  // EPLB_CLIENT_FORMATS_LOAD_FILE_H_
