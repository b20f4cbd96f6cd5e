#include "client/files/load_file.h"

#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"

#include "client/files/load_json.h"
#include "client/files/load_npy.h"
#include "client/files/read_file.h"
#include "placement/status_macros.h"

namespace eplb {

absl::StatusOr<LoadFile> ReadLoadFile(const std::string& path) {
  EPLB_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(path));
  const std::string_view content = bytes;
  const size_t start = content.find_first_not_of(" \t\r\n");
  if (start == std::string_view::npos) return absl::InvalidArgumentError(path + ": is empty");
  // The magic is whole or not there; a shorter file of its first bytes is a truncated .npy.
  if (content.starts_with(kNpyMagic) || kNpyMagic.starts_with(content)) {
    absl::StatusOr<std::vector<LoadWindow>> windows = ParseLoadNpy(content);
    if (!windows.ok()) return InFile(path, windows.status());
    return LoadFile{*std::move(windows)};
  }
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (content[start] == '[' || content[start] == '{' || content.starts_with(kByteOrderMark)) {
    EPLB_ASSIGN_OR_RETURN(std::vector<LoadWindow> windows, ParseLoadJson(path, content));
    return LoadFile{std::move(windows)};
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": is no load; ", KnownLoadFormats()));
}

}  // namespace eplb
