#include "client/files/formats/model_layers.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "placement/status_macros.h"

namespace eplb {
namespace {

// "row 4", "rows 0..2" or "rows 0, 2, 4 and 12 more".
std::string RowsText(const std::vector<Eigen::Index>& rows) {
  constexpr size_t kMaxNamed = 8;
  if (rows.size() == 1) return absl::StrCat("row ", rows[0]);
  if (rows.back() - rows.front() + 1 == static_cast<Eigen::Index>(rows.size())) {
    return absl::StrCat("rows ", rows.front(), "..", rows.back());
  }
  std::string text = "rows";
  for (size_t i = 0; i < std::min(rows.size(), kMaxNamed); ++i) {
    absl::StrAppend(&text, i == 0 ? " " : ", ", rows[i]);
  }
  if (rows.size() > kMaxNamed) absl::StrAppend(&text, " and ", rows.size() - kMaxNamed, " more");
  return text;
}

absl::Status CheckRowsAreLeft(int32_t first_layer, Eigen::Index num_rows) {
  if (first_layer < num_rows) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("has ", num_rows, " rows, --first-layer ", first_layer,
                   " leaves none of them; the file has a row for every layer of the model, "
                   "also for the dense ones"));
}

// dense: of each row, whether it looks like that of a dense layer. how: what makes it look so.
std::string NoteOn(const std::optional<int32_t>& first_layer, const std::vector<bool>& dense,
                   const char* how) {
  std::vector<Eigen::Index> rows;
  const size_t end = first_layer.has_value() ? static_cast<size_t>(*first_layer) : dense.size();
  for (size_t row = 0; row < end; ++row) {
    if (dense[row] != first_layer.has_value()) rows.push_back(static_cast<Eigen::Index>(row));
  }
  if (rows.empty()) return {};
  if (first_layer.has_value()) {
    return absl::StrCat(RowsText(rows), " left out for --first-layer ", *first_layer,
                        ", though not all ", how, " there");
  }
  if (rows.size() == dense.size()) return {};
  std::string note =
      absl::StrCat(RowsText(rows), rows.size() == 1 ? " looks" : " look", " like dense layers (",
                   how, "), and sglang has a row for every model layer");
  if (rows.back() + 1 == static_cast<Eigen::Index>(rows.size())) {
    absl::StrAppend(&note, "; give --first-layer ", rows.size(), " to leave them out");
  }
  return note;
}

bool HasTokens(const Load& load, Eigen::Index layer) {
  if (load.is_counts()) return (load.counts().row(layer) != 0).any();
  return (load.ToDouble().row(layer) != 0).any();
}

}  // namespace

IndexMatrix WithDenseRows(const IndexMatrix& slots, int32_t num_experts, int32_t first_layer) {
  IndexMatrix all(slots.rows() + first_layer, slots.cols());
  for (Eigen::Index row = 0; row < first_layer; ++row) {
    for (Eigen::Index slot = 0; slot < slots.cols(); ++slot) {
      all(row, slot) = static_cast<int32_t>(slot % num_experts);
    }
  }
  all.bottomRows(slots.rows()) = slots;
  return all;
}

absl::StatusOr<std::string> TakeDenseRows(const std::optional<int32_t>& first_layer,
                                          IndexMatrix& slots) {
  EPLB_RETURN_IF_ERROR(CheckRowsAreLeft(first_layer.value_or(0), slots.rows()));
  const Eigen::Index experts = std::max<Eigen::Index>(1, Eigen::Index{slots.maxCoeff()} + 1);
  std::vector<bool> dense(static_cast<size_t>(slots.rows()), true);
  for (Eigen::Index i = 0; i < slots.size(); ++i) {
    if (slots.data()[i] == i % slots.cols() % experts) continue;
    dense[static_cast<size_t>(i / slots.cols())] = false;
  }
  std::string note = NoteOn(first_layer, dense, "experts lie in order");
  slots = slots.bottomRows(slots.rows() - first_layer.value_or(0)).eval();
  return note;
}

absl::StatusOr<std::string> TakeDenseRows(const std::optional<int32_t>& first_layer,
                                          std::vector<LoadWindow>& windows) {
  const Eigen::Index rows = windows.front().load.num_layers();
  EPLB_RETURN_IF_ERROR(CheckRowsAreLeft(first_layer.value_or(0), rows));
  std::vector<bool> dense(static_cast<size_t>(rows), true);
  for (LoadWindow& window : windows) {
    for (Eigen::Index row = 0; row < rows; ++row) {
      if (HasTokens(window.load, row)) dense[static_cast<size_t>(row)] = false;
    }
    if (first_layer.value_or(0) == 0) continue;
    const Eigen::Index left = rows - *first_layer;
    EPLB_ASSIGN_OR_RETURN(window.load,
                          window.load.is_counts()
                              ? Load::FromCounts(window.load.counts().bottomRows(left))
                              : Load::FromEstimates(window.load.ToDouble().bottomRows(left)));
  }
  return NoteOn(first_layer, dense, "no tokens");
}

}  // namespace eplb
