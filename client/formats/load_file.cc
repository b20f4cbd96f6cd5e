#include "client/formats/load_file.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/files.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/formats/deepseek_format.h"
#include "client/formats/load_json.h"
#include "client/formats/npy.h"
#include "client/formats/sglang_format.h"
#include "client/formats/tables.h"
#include "client/formats/trtllm_format.h"
#include "client/formats/vllm_format.h"

namespace eplb {
namespace {

using Windows = absl::StatusOr<std::vector<LoadWindow>>;
using File = absl::StatusOr<LoadFile>;

File FileOf(Windows windows) {
  if (!windows.ok()) return windows.status();
  return LoadFile{.windows = *std::move(windows)};
}

// The magic is whole or not there; a shorter file of its first bytes is a truncated .npy.
bool IsNpy(std::string_view bytes) {
  return bytes.starts_with(kNpyMagic) || kNpyMagic.starts_with(bytes);
}

Windows ParseNpy(const std::string& path, std::string_view bytes) {
  Windows windows = ParseLoadNpy(bytes);
  if (!windows.ok()) return InFile(path, windows.status());
  return windows;
}

File ParseOwnLoad(const std::string& path, std::string_view bytes) {
  return FileOf(IsNpy(bytes) ? ParseNpy(path, bytes) : ParseLoadJson(path, bytes));
}

File ParseDeepseekFile(const std::string& path, std::string_view bytes) {
  return FileOf(ParseDeepseekLoad(path, bytes));
}

Windows ParseSglangWindows(const std::string& path, std::string_view bytes) {
  if (IsNpy(bytes)) return ParseNpy(path, bytes);
  const absl::StatusOr<wire::JsonValue> value = wire::ParseJson(bytes);
  if (!value.ok()) return InFile(path, value.status());
  Windows windows = SglangLoad(*value);
  if (!windows.ok()) return InFile(path, windows.status());
  return windows;
}

File ParseSglangLoad(const std::string& path, std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(LoadFile file, FileOf(ParseSglangWindows(path, bytes)));
  file.counts_model_layers = true;
  return file;
}

File ParseAnyLoad(const std::string& path, std::string_view bytes) {
  if (IsNpy(bytes)) return FileOf(ParseNpy(path, bytes));
  if (bytes.starts_with(kZipMagic)) return FileOf(ParseDeepseekLoad(path, bytes));
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const char first = bytes[bytes.find_first_not_of(" \t\r\n")];
  if (first == '[' || first == '{' || bytes.starts_with(kByteOrderMark)) {
    return ParseAnyLoadJson(path, bytes);
  }
  if (LooksLikeCsv(bytes) || path.ends_with(".csv")) return FileOf(ParseDeepseekLoad(path, bytes));
  return absl::InvalidArgumentError(absl::StrCat(path, ": is no load; ", KnownLoadFormats()));
}

constexpr char kTrtllm[] = "trtllm";  // a directory, which is not read into bytes

struct LoadFormat {
  std::string_view name;
  File (*parse)(const std::string& path, std::string_view bytes);
};

constexpr LoadFormat kLoadFormats[] = {
    {"eplb", &ParseOwnLoad},
    {"deepseek", &ParseDeepseekFile},
    {"sglang", &ParseSglangLoad},
    {"vllm", &ParseVllmLoad},
};

absl::StatusOr<LoadFormat> FindLoadFormat(std::string_view name) {
  if (name.empty()) return LoadFormat{name, &ParseAnyLoad};
  for (const LoadFormat& format : kLoadFormats) {
    if (format.name == name) return format;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("load format is ", wire::JsonQuote(name.substr(0, 80)), ", expected one of ",
                   absl::StrJoin(LoadFormatNames(), ", ")));
}

absl::StatusOr<LoadFile> ReadAllRows(const std::string& path, std::string_view format_name) {
  if (format_name == kTrtllm || (format_name.empty() && IsTrtllmStatistics(path))) {
    return FileOf(ReadTrtllmStatistics(path));
  }
  EPLB_ASSIGN_OR_RETURN(const LoadFormat format, FindLoadFormat(format_name));
  EPLB_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(path));
  if (bytes.find_first_not_of(" \t\r\n") == std::string::npos) {
    return absl::InvalidArgumentError(path + ": is empty");
  }
  if (IsTorchDump(bytes)) return InFile(path, TorchDumpError());
  return format.parse(path, bytes);
}

}  // namespace

std::vector<std::string> LoadFormatNames() {
  std::vector<std::string> names;
  for (const LoadFormat& format : kLoadFormats) names.emplace_back(format.name);
  names.emplace_back(kTrtllm);
  return names;
}

absl::StatusOr<LoadFile> ReadLoadFile(const std::string& path, const LoadReading& reading) {
  EPLB_ASSIGN_OR_RETURN(LoadFile file, ReadAllRows(path, reading.format));
  if (!file.counts_model_layers && reading.first_layer.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": --first-layer is for loads of sglang, which have rows for dense layers too; ",
        "if this is one, give --format sglang"));
  }
  if (!file.counts_model_layers) return file;
  const absl::StatusOr<std::string> note = TakeDenseRows(reading.first_layer, file.windows);
  if (!note.ok()) return InFile(path, note.status());
  if (!note->empty()) file.notes.push_back(*note);
  return file;
}

std::string NotesOn(const std::string& path, const LoadFile& file) {
  if (file.notes.empty()) return {};
  return absl::StrCat("note: ", path, ": ", absl::StrJoin(file.notes, "; "));
}

}  // namespace eplb
