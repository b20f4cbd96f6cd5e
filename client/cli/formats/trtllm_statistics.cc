// Reads the directory of expert statistics of TensorRT-LLM.
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

#include "base/errors.h"
#include "base/files.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/status_macros.h"
#include "client/cli/formats/engine_formats.h"
#include "client/cli/formats/layer_numbers.h"
#include "client/cli/formats/safetensors.h"

namespace eplb {
namespace {

constexpr char kMeta[] = "meta_info.json";
constexpr int64_t kMaxMetaBytes = int64_t{1} << 20;
constexpr int64_t kMaxExperts = int64_t{1} << 20;
constexpr int32_t kMaxRanks = 1 << 16;

using Cells = std::map<std::pair<int64_t, int32_t>, std::vector<int64_t>>;  // (iteration, layer)

struct Meta {
  int64_t num_experts = 0;
  std::optional<int64_t> ep_size;
};

absl::StatusOr<Meta> ParseMeta(std::string_view text) {
  EPLB_ASSIGN_OR_RETURN(const wire::JsonValue object, wire::ParseJson(text));
  Meta meta;
  EPLB_ASSIGN_OR_RETURN(meta.num_experts, wire::GetInteger(object, "num_experts"));
  if (meta.num_experts < 1 || meta.num_experts > kMaxExperts) {
    return InvalidInput("num_experts is ", meta.num_experts, ", expected 1..", kMaxExperts);
  }
  if (object.Find("ep_size") != nullptr) {
    EPLB_ASSIGN_OR_RETURN(meta.ep_size, wire::GetInteger(object, "ep_size"));
  }
  return meta;
}

absl::StatusOr<Meta> ReadMeta(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/", kMeta);
  EPLB_ASSIGN_OR_RETURN(const std::string text, ReadRegularFile(path, kMaxMetaBytes));
  return InFile(path, ParseMeta(text));
}

// The number of ranks: their files must be numbered from 0 without a gap.
absl::StatusOr<int32_t> CountRanks(const std::string& directory,
                                   const std::optional<int64_t>& ep_size) {
  EPLB_ASSIGN_OR_RETURN(const std::set<int32_t> ranks,
                        RanksOfFiles(directory, "rank", ".safetensors"));
  int32_t count = 0;
  while (ranks.contains(count)) ++count;
  const int64_t expected = ep_size.value_or(ranks.empty() ? 1 : int64_t{*ranks.rbegin()} + 1);
  if (count == expected && ranks.size() == static_cast<size_t>(count)) return count;
  if (count < expected) {
    return InvalidInput(directory, ": rank", count,
                        ".safetensors is missing, expected the files of ", expected, " ranks");
  }
  return InvalidInput(directory, ": has the files of ", ranks.size(), " ranks, ", kMeta,
                      " has ep_size ", expected);
}

// "100_3" -> iteration 100, layer 3.
absl::StatusOr<std::pair<int64_t, int32_t>> ParseKey(const std::string& name) {
  const size_t mark = name.find('_');
  int64_t iteration = -1;
  int32_t layer = -1;
  if (mark == std::string::npos || !absl::SimpleAtoi(name.substr(0, mark), &iteration) ||
      !absl::SimpleAtoi(name.substr(mark + 1), &layer) || iteration < 0 || layer < 0 ||
      absl::StrCat(iteration, "_", layer) != name) {
    return InvalidInput("has the tensor ", wire::JsonQuote(FirstCharacters(name, 80)),
                        ", expected \"iteration_layer\"");
  }
  return std::pair(iteration, layer);
}

// Adds a tensor to the counts of its (iteration, layer).
absl::Status AddTensor(const SafeTensor& tensor, std::vector<int64_t>& counts) {
  for (size_t expert = 0; expert < counts.size(); ++expert) {
    int64_t count = 0;  // the data is not aligned
    std::memcpy(&count, tensor.data.data() + expert * sizeof(count), sizeof(count));
    if (count < 0 || __builtin_add_overflow(counts[expert], count, &counts[expert])) {
      return InvalidInput(tensor.name, " expert ", expert, " is ", count,
                          count < 0 ? ", counts are >= 0" : ", the sum over ranks is above 2^63-1");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const SafeTensor& tensor, int64_t num_experts) {
  const bool shaped = tensor.shape.size() == 1 && tensor.shape[0] == num_experts;
  const auto bytes = num_experts * static_cast<int64_t>(sizeof(int64_t));
  if (tensor.dtype == "I64" && shaped && std::ssize(tensor.data) == bytes) return absl::OkStatus();
  return InvalidInput(tensor.name, " is ", wire::JsonQuote(FirstCharacters(tensor.dtype, 16)),
                      " of ", tensor.shape.empty() ? 1 : tensor.shape[0], " numbers in ",
                      tensor.data.size(), " bytes, expected \"I64\" [", num_experts, "] in ",
                      bytes);
}

// REQUIRES: rank 0 comes first, its keys are those of all.
absl::Status AddRank(std::string_view bytes, bool is_first, int64_t num_experts, Cells& cells) {
  EPLB_ASSIGN_OR_RETURN(const std::vector<SafeTensor> tensors, ParseSafetensors(bytes));
  for (const SafeTensor& tensor : tensors) {
    EPLB_ASSIGN_OR_RETURN(const auto key, ParseKey(tensor.name));
    EPLB_RETURN_IF_ERROR(CheckTensor(tensor, num_experts));
    if (is_first) cells[key].assign(static_cast<size_t>(num_experts), 0);
    const auto found = cells.find(key);
    if (found == cells.end()) {
      return InvalidInput("has ", tensor.name, ", which rank0.safetensors has not");
    }
    EPLB_RETURN_IF_ERROR(AddTensor(tensor, found->second));
  }
  if (tensors.size() == cells.size()) return absl::OkStatus();
  return InvalidInput("has ", tensors.size(), " tensors, rank0.safetensors has ", cells.size());
}

// REQUIRES: not empty. Every iteration must have the layers of the first.
absl::StatusOr<LoadFile> CountsOf(const Cells& cells, int64_t num_experts) {
  std::map<int64_t, LayerNumbers> layers;  // layers of each iteration
  for (const auto& [key, counts] : cells) layers[key.first].push_back(key.second);
  LoadFile file{.windows = {}, .has_steps = true, .layers = layers.begin()->second};
  auto cell = cells.begin();
  for (const auto& [iteration, numbers] : layers) {
    if (numbers != file.layers) {
      return InvalidInput("iteration ", iteration, " has layers ", LayerNumbersText(numbers),
                          ", iteration ", layers.begin()->first, " has ",
                          LayerNumbersText(file.layers));
    }
    LoadMatrix matrix(static_cast<Eigen::Index>(numbers.size()), num_experts);
    for (Eigen::Index row = 0; row < matrix.rows(); ++row, ++cell) {
      std::memcpy(&matrix(row, 0), cell->second.data(), cell->second.size() * sizeof(int64_t));
    }
    EPLB_ASSIGN_OR_RETURN(Load load, InFile(absl::StrCat("iteration ", iteration),
                                            Load::FromCounts(std::move(matrix))));
    file.windows.push_back({iteration, iteration, std::move(load)});
  }
  return file;
}

}  // namespace

absl::StatusOr<std::set<int32_t>> RanksOfFiles(const std::string& directory, const char* prefix,
                                               const char* suffix) {
  std::error_code error;
  std::set<int32_t> ranks;
  for (std::filesystem::directory_iterator entry(directory, error), end;
       !error && entry != end && ranks.size() < size_t{kMaxRanks}; entry.increment(error)) {
    const std::string name = entry->path().filename();
    absl::string_view number = name;
    int32_t rank = -1;
    if (absl::ConsumePrefix(&number, prefix) && absl::ConsumeSuffix(&number, suffix) &&
        absl::SimpleAtoi(number, &rank) && rank >= 0) {
      ranks.insert(rank);
    }
  }
  if (error) return InvalidInput(directory, ": ", error.message());
  return ranks;
}

bool IsTrtllmStatistics(const std::string& path) {
  std::error_code error;
  return std::filesystem::is_directory(path, error) &&
         std::filesystem::exists(absl::StrCat(path, "/", kMeta), error);
}

absl::StatusOr<LoadFile> ReadTrtllmStatistics(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    return InvalidInput(path, ": is no directory of statistics with ", kMeta);
  }
  EPLB_ASSIGN_OR_RETURN(const Meta meta, ReadMeta(path));
  EPLB_ASSIGN_OR_RETURN(const int32_t num_ranks, CountRanks(path, meta.ep_size));
  Cells cells;
  for (int32_t rank = 0; rank < num_ranks; ++rank) {
    const std::string file = absl::StrCat(path, "/rank", rank, ".safetensors");
    EPLB_ASSIGN_OR_RETURN(const std::string bytes, ReadRegularFile(file));
    EPLB_RETURN_IF_ERROR(InFile(file, AddRank(bytes, rank == 0, meta.num_experts, cells)));
  }
  if (cells.empty()) return InvalidInput(path, ": holds no counts");
  return InFile(path, CountsOf(cells, meta.num_experts));
}

}  // namespace eplb
