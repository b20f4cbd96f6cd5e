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
#include "client/cli/formats/torch_file.h"
#include "client/cli/formats/zip_archive.h"

namespace eplb {
namespace {

using File = absl::StatusOr<LoadFile>;

// The first character that is no blank opens a JSON value.
bool IsJson(std::string_view bytes) {
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  const char first = bytes[bytes.find_first_not_of(" \t\r\n")];
  return first == '[' || first == '{' || bytes.starts_with(kByteOrderMark);
}

File ParseOwnLoad(const std::string& path, std::string_view bytes) {
  return IsNpy(bytes) ? ParseDeepseekLoad(path, bytes) : ParseLoadJson(path, bytes);
}

File ParseAnyLoad(const std::string& path, std::string_view bytes) {
  if (IsJson(bytes)) return ParseAnyLoadJson(path, bytes);
  if (IsNpy(bytes) || bytes.starts_with(kZipMagic) || LooksLikeCsv(bytes) ||
      path.ends_with(".csv")) {
    return ParseDeepseekLoad(path, bytes);
  }
  return InvalidInput(path, ": is no load; ", KnownLoadFormats());
}

File ParseSglangLoad(const std::string& path, std::string_view bytes) {
  if (IsJson(bytes)) {
    EPLB_ASSIGN_OR_RETURN(const wire::JsonValue value, InFile(path, wire::ParseJson(bytes)));
    return InFile(path, SglangLoad(value));
  }
  EPLB_ASSIGN_OR_RETURN(LoadFile file, ParseAnyLoad(path, bytes));
  file.counts_model_layers = true;
  return file;
}

constexpr int64_t kMostChoices = 16;  // no known model has more a token

// A file of torch.save: counts, or without words single choices if `num_experts` is given.
File ReadTorchLoad(std::string_view bytes, const std::optional<int32_t>& num_experts) {
  EPLB_ASSIGN_OR_RETURN(const TorchTensor tensor, ReadTorchTensor(bytes, "logical_count"));
  if (tensor.is_alone && num_experts.has_value()) {
    EPLB_ASSIGN_OR_RETURN(LoadWindow window, CountChoices(tensor.array, *num_experts));
    return LoadFile{.windows = {std::move(window)}};
  }
  EPLB_ASSIGN_OR_RETURN(LoadFile file,
                        LoadFileOf(LoadsFromArray(tensor.array),
                                   tensor.is_alone ? TableKind::kArray : TableKind::kNamed));
  file.counts_model_layers = !tensor.is_alone;
  const std::vector<int64_t>& shape = tensor.array.shape;
  if (tensor.is_alone && shape.size() == 3 && shape[2] <= kMostChoices) {
    file.notes.push_back(
        absl::StrCat("is read as windows of ", shape[2],
                     " experts; for choices [tokens, layers, top-k] give --experts"));
  }
  for (LoadWindow& window : file.windows) {  // SGLang's approximate mode counts in float32
    if (window.load.is_counts()) continue;
    const RealMatrix load = window.load.ToDouble();
    if ((load != load.round()).any() || load.maxCoeff() >= 0x1p63) {
      return InvalidInput("has fractions, expected whole numbers of tokens");
    }
    EPLB_ASSIGN_OR_RETURN(window.load, Load::FromCounts(load.cast<int64_t>()));
  }
  return file;
}

// Read by their path, which may be a directory.
constexpr char kTrtllm[] = "trtllm";
constexpr char kMegatron[] = "megatron";

struct LoadFormat {
  std::string_view name;
  File (*parse)(const std::string& path, std::string_view bytes);
};

constexpr LoadFormat kLoadFormats[] = {
    {"eplb", &ParseOwnLoad},      {"deepseek", &ParseDeepseekLoad},
    {"sglang", &ParseSglangLoad}, {"vllm", &ParseVllmLoad},
    {kTrtllm, nullptr},           {"ascend", &ParseAscendLoad},
    {kMegatron, nullptr},
};

absl::StatusOr<LoadFormat> FindLoadFormat(std::string_view name) {
  if (name.empty()) return LoadFormat{name, &ParseAnyLoad};
  for (const LoadFormat& format : kLoadFormats) {
    if (format.name == name) return format;
  }
  return InvalidInput("load format is ", wire::JsonQuote(FirstCharacters(name, 80)),
                      ", expected one of ", absl::StrJoin(LoadFormatNames(), ", "));
}

absl::StatusOr<LoadFile> ReadAllRows(const std::string& path, const LoadReading& reading) {
  const std::string& name = reading.format;
  if (name == kTrtllm || (name.empty() && IsTrtllmStatistics(path))) {
    return ReadTrtllmStatistics(path);
  }
  if (name == kMegatron || (name.empty() && HoldsRouterTraces(path))) {
    return ReadRouterTraces(path, reading.experts);
  }
  EPLB_ASSIGN_OR_RETURN(const LoadFormat format, FindLoadFormat(name));
  EPLB_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(path));
  if (bytes.find_first_not_of(" \t\r\n") == std::string::npos) {
    return InvalidInput(path + ": is empty");
  }
  if (name.empty() && IsRouterTrace(bytes)) return ReadRouterTraces(path, reading.experts);
  if (!IsTorchFile(bytes)) return format.parse(path, bytes);
  if (name.empty() || name == "sglang") return InFile(path, ReadTorchLoad(bytes, reading.experts));
  return InvalidInput(path, ": is a file of torch.save, which needs no --format, or sglang");
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
  constexpr int32_t kMaxExperts = 1 << 16;
  if (const int32_t given = reading.experts.value_or(1); given < 1 || given > kMaxExperts) {
    return InvalidInput("--experts is ", given, ", expected 1..", kMaxExperts);
  }
  EPLB_ASSIGN_OR_RETURN(LoadFile file, ReadAllRows(path, reading));
  const int32_t experts = file.windows.front().load.num_experts();
  if (reading.experts.value_or(experts) != experts) {
    return InvalidInput(path, ": has ", experts, " experts, --experts is ", *reading.experts);
  }
  EPLB_RETURN_IF_ERROR(InFile(path, CheckAndChoose(reading.layers, file)));
  return file;
}

std::string NotesOn(const std::string& path, const LoadFile& file) {
  if (file.notes.empty()) return {};
  return absl::StrCat("note: ", path, ": ", absl::StrJoin(file.notes, "; "));
}

}  // namespace eplb
