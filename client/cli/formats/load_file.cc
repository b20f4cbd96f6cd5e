#include "client/cli/formats/load_file.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/csv.h"
#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/load_doubts.h"
#include "client/cli/formats/load_json.h"
#include "client/cli/formats/npy.h"
#include "client/cli/formats/npz.h"

namespace eplb {
namespace {

using Windows = absl::StatusOr<std::vector<LoadWindow>>;
using File = absl::StatusOr<LoadFile>;

File FileOf(Windows windows, TableKind table) {
  if (!windows.ok()) return windows.status();
  return LoadFile{.windows = *std::move(windows), .table = table};
}

// The magic is whole or not there; a shorter file of its first bytes is a truncated .npy.
bool IsNpy(std::string_view bytes) {
  return bytes.starts_with(kNpyMagic) || kNpyMagic.starts_with(bytes);
}

File ParseNpy(const std::string& path, std::string_view bytes) {
  Windows windows = ParseLoadNpy(bytes);
  if (!windows.ok()) return InFile(path, windows.status());
  return FileOf(std::move(windows), TableKind::kArray);
}

// The first character that is no blank opens a JSON value.
bool IsJson(std::string_view bytes) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const char first = bytes[bytes.find_first_not_of(" \t\r\n")];
  return first == '[' || first == '{' || bytes.starts_with(kByteOrderMark);
}

File ParseOwnLoad(const std::string& path, std::string_view bytes) {
  if (IsNpy(bytes)) return ParseNpy(path, bytes);
  const bool is_array = bytes[bytes.find_first_not_of(" \t\r\n")] == '[';
  return FileOf(ParseLoadJson(path, bytes), is_array ? TableKind::kArray : TableKind::kNamed);
}

File ParseDeepseekFile(const std::string& path, std::string_view bytes) {
  const bool csv = !IsNpy(bytes) && !bytes.starts_with(kZipMagic) && !IsJson(bytes);
  return FileOf(ParseDeepseekLoad(path, bytes), csv ? TableKind::kCsv : TableKind::kArray);
}

File ParseAnyLoad(const std::string& path, std::string_view bytes) {
  if (IsNpy(bytes)) return ParseNpy(path, bytes);
  if (IsJson(bytes)) return ParseAnyLoadJson(path, bytes);
  if (bytes.starts_with(kZipMagic) || LooksLikeCsv(bytes) || path.ends_with(".csv")) {
    return ParseDeepseekFile(path, bytes);
  }
  return InvalidInput(path, ": is no load; ", KnownLoadFormats());
}

File ParseSglangJson(const std::string& path, std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue value, InFile(path, wire::ParseJson(bytes)));
  Windows windows = SglangLoad(value);
  if (!windows.ok()) return InFile(path, windows.status());
  return FileOf(std::move(windows), value.is_array() ? TableKind::kArray : TableKind::kNamed);
}

File ParseSglangLoad(const std::string& path, std::string_view bytes) {
  EPLB_ASSIGN_OR_RETURN(LoadFile file,
                        IsJson(bytes) ? ParseSglangJson(path, bytes) : ParseAnyLoad(path, bytes));
  file.counts_model_layers = true;
  return file;
}

constexpr char kTrtllm[] = "trtllm";  // a directory, which is not read into bytes

struct LoadFormat {
  std::string_view name;
  File (*parse)(const std::string& path, std::string_view bytes);
};

constexpr LoadFormat kLoadFormats[] = {
    {"eplb", &ParseOwnLoad},      {"deepseek", &ParseDeepseekFile},
    {"sglang", &ParseSglangLoad}, {"vllm", &ParseVllmLoad},
    {kTrtllm, nullptr},  // read by its path
    {"ascend", &ParseAscendLoad},
};

absl::StatusOr<LoadFormat> FindLoadFormat(std::string_view name) {
  if (name.empty()) return LoadFormat{name, &ParseAnyLoad};
  for (const LoadFormat& format : kLoadFormats) {
    if (format.name == name) return format;
  }
  return InvalidInput("load format is ", wire::JsonQuote(FirstCharacters(name, 80)),
                      ", expected one of ", absl::StrJoin(LoadFormatNames(), ", "));
}

absl::StatusOr<LoadFile> ReadAllRows(const std::string& path, std::string_view format_name) {
  if (format_name == kTrtllm || (format_name.empty() && IsTrtllmStatistics(path))) {
    return ReadTrtllmStatistics(path);
  }
  EPLB_ASSIGN_OR_RETURN(const LoadFormat format, FindLoadFormat(format_name));
  EPLB_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(path));
  if (bytes.find_first_not_of(" \t\r\n") == std::string::npos) {
    return InvalidInput(path + ": is empty");
  }
  if (IsTorchDump(bytes)) return InFile(path, TorchDumpError());
  return format.parse(path, bytes);
}

// Keeps the rows that the choice names. errors: without path.
absl::Status ChooseLayers(const LayerChoice& choice, LoadFile& file) {
  const bool numbered = !file.layers.empty();
  if (file.counts_model_layers || (choice.given() && !numbered)) {
    const std::string note = NoteOnDenseRows(DenseRows(file.windows), choice, "no tokens");
    if (!note.empty()) file.notes.push_back(note);
  }
  if (!choice.given()) {
    // --first-layer alone does not name layers with gaps when a plan is converted back.
    if (numbered && !ChoiceOf(file.layers).list.empty()) {
      file.notes.push_back(absl::StrCat("its rows are the model's layers ",
                                        LayerNumbersText(file.layers),
                                        ": give them as --layers to `eplbctl convert`"));
    }
    return absl::OkStatus();
  }
  const LayerNumbers all =
      numbered ? file.layers : Consecutive(0, file.windows.front().load.num_layers());
  EPLB_ASSIGN_OR_RETURN(const std::vector<Eigen::Index> rows, ChooseRows(all, choice));
  file.layers.clear();
  for (const Eigen::Index row : rows) file.layers.push_back(all[static_cast<size_t>(row)]);
  return KeepRows(rows, file.windows);
}

// errors: without path.
absl::Status CheckAndChoose(const LayerChoice& choice, LoadFile& file) {
  if (file.table != TableKind::kNamed) {
    EPLB_ASSIGN_OR_RETURN(std::string doubt, DoubtsAboutLoad(file.windows, file.table));
    if (!doubt.empty()) file.notes.push_back(std::move(doubt));
  }
  return ChooseLayers(choice, file);
}

}  // namespace

std::vector<std::string> LoadFormatNames() {
  std::vector<std::string> names;
  for (const LoadFormat& format : kLoadFormats) names.emplace_back(format.name);
  return names;
}

absl::StatusOr<LoadFile> ReadLoadFile(const std::string& path, const LoadReading& reading) {
  EPLB_ASSIGN_OR_RETURN(LoadFile file, ReadAllRows(path, reading.format));
  const absl::Status chosen = CheckAndChoose(reading.layers, file);
  if (!chosen.ok()) return InFile(path, chosen);
  return file;
}

std::string NotesOn(const std::string& path, const LoadFile& file) {
  if (file.notes.empty()) return {};
  return absl::StrCat("note: ", path, ": ", absl::StrJoin(file.notes, "; "));
}

}  // namespace eplb
