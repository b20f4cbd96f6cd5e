#include "client/cli/formats/layer_numbers.h"

#include <algorithm>
#include <numeric>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

#include "base/errors.h"
#include "base/foreign_text.h"
#include "base/json_value.h"
#include "base/status_macros.h"

namespace eplb {
namespace {

// Decimal digits alone.
bool ReadNumber(absl::string_view text, int32_t* number) {
  return !text.empty() && text.find_first_not_of("0123456789") == absl::string_view::npos &&
         absl::SimpleAtoi(text, number) && *number <= kMaxLayerNumber;
}

struct Range {
  int32_t first = 0;
  int32_t last = 0;
  int32_t step = 1;
};

// "7", "3-60", "3:60" or "1:47:2".
bool ReadRange(absl::string_view text, Range* range) {
  const char mark = absl::string_view::npos == text.find(':') ? '-' : ':';
  const std::vector<absl::string_view> parts = absl::StrSplit(text, mark);
  if (parts.size() > (mark == ':' ? 3U : 2U) || !ReadNumber(parts[0], &range->first)) return false;
  range->last = range->first;
  if (parts.size() > 1 && !ReadNumber(parts[1], &range->last)) return false;
  if (parts.size() > 2 && !ReadNumber(parts[2], &range->step)) return false;
  return range->last >= range->first && range->step >= 1;
}

// The longest range of one step that begins at `at`.
Range RangeAt(const LayerNumbers& numbers, size_t at) {
  Range range{.first = numbers[at], .last = numbers[at]};
  if (at + 1 == numbers.size()) return range;
  range.step = numbers[at + 1] - numbers[at];
  for (size_t i = at + 1; i < numbers.size() && numbers[i] == range.last + range.step; ++i) {
    range.last = numbers[i];
  }
  return range;
}

}  // namespace

std::string LayerChoice::Flag() const {
  if (first.has_value()) return absl::StrCat("--first-layer ", *first);
  return list.empty() ? std::string() : absl::StrCat("--layers ", LayerNumbersText(list));
}

absl::StatusOr<LayerNumbers> ParseLayerNumbers(std::string_view text) {
  LayerNumbers numbers;
  for (const absl::string_view part :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ',')) {
    Range range;
    if (!ReadRange(part, &range) || (!numbers.empty() && range.first <= numbers.back())) {
      return InvalidInput(wire::JsonQuote(FirstCharacters(text, 80)),
                          " is not a list of rising layer numbers in 0..", kMaxLayerNumber,
                          ", such as 3-60, 1,3,5 or 1:47:2");
    }
    for (int32_t layer = range.first; layer <= range.last; layer += range.step) {
      numbers.push_back(layer);
    }
  }
  return numbers;
}

std::string LayerNumbersText(const LayerNumbers& numbers) {
  std::string text;
  for (size_t at = 0; at < numbers.size();) {
    Range range = RangeAt(numbers, at);
    // A pair is no range.
    if (range.last == range.first + range.step) range.last = range.first;
    absl::StrAppend(&text, text.empty() ? "" : ",", range.first);
    const bool is_range = range.last > range.first;
    if (is_range && range.step == 1) absl::StrAppend(&text, "-", range.last);
    if (is_range && range.step > 1) absl::StrAppend(&text, ":", range.last, ":", range.step);
    at += static_cast<size_t>((range.last - range.first) / range.step) + 1;
  }
  return text;
}

LayerNumbers Consecutive(int32_t first, int64_t count) {
  LayerNumbers numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

LayerChoice ChoiceOf(const LayerNumbers& numbers) {
  if (numbers == Consecutive(numbers.front(), std::ssize(numbers))) {
    return {.first = numbers.front()};
  }
  return {.list = numbers};
}

absl::StatusOr<std::vector<Eigen::Index>> ChooseRows(const LayerNumbers& numbers,
                                                     const LayerChoice& choice) {
  std::vector<Eigen::Index> rows;
  for (const int32_t layer : choice.list) {
    const auto found = std::lower_bound(numbers.begin(), numbers.end(), layer);
    if (found == numbers.end() || *found != layer) {
      return InvalidInput("has layers ", LayerNumbersText(numbers), ", ", choice.Flag(),
                          " names layer ", layer);
    }
    rows.push_back(found - numbers.begin());
  }
  for (size_t row = 0; choice.list.empty() && row < numbers.size(); ++row) {
    if (numbers[row] >= choice.first.value_or(0)) rows.push_back(static_cast<Eigen::Index>(row));
  }
  if (!rows.empty()) return rows;
  return InvalidInput("has layers ", LayerNumbersText(numbers), ", ", choice.Flag(),
                      " leaves none of them");
}

absl::Status KeepRows(const std::vector<Eigen::Index>& rows, std::vector<LoadWindow>& windows) {
  for (LoadWindow& window : windows) {
    if (window.load.is_counts()) {
      EPLB_ASSIGN_OR_RETURN(window.load,
                            Load::FromCounts(LoadMatrix(window.load.counts()(rows, Eigen::all))));
    } else {
      EPLB_ASSIGN_OR_RETURN(
          window.load, Load::FromEstimates(RealMatrix(window.load.ToDouble()(rows, Eigen::all))));
    }
  }
  return absl::OkStatus();
}

IndexMatrix WithDenseRows(const IndexMatrix& slots, int32_t num_experts,
                          const LayerNumbers& numbers) {
  IndexMatrix all(numbers.back() + 1, slots.cols());
  for (Eigen::Index i = 0; i < all.size(); ++i) {
    all.data()[i] = static_cast<int32_t>(i % slots.cols() % num_experts);
  }
  for (Eigen::Index row = 0; row < slots.rows(); ++row) {
    all.row(numbers[static_cast<size_t>(row)]) = slots.row(row);
  }
  return all;
}

std::vector<bool> DenseRows(const IndexMatrix& slots) {
  const Eigen::Index experts = std::max<Eigen::Index>(1, Eigen::Index{slots.maxCoeff()} + 1);
  std::vector<bool> dense(static_cast<size_t>(slots.rows()), true);
  for (Eigen::Index i = 0; i < slots.size(); ++i) {
    if (slots.data()[i] == i % slots.cols() % experts) continue;
    dense[static_cast<size_t>(i / slots.cols())] = false;
  }
  return dense;
}

std::vector<bool> DenseRows(const std::vector<LoadWindow>& windows) {
  std::vector<bool> dense(static_cast<size_t>(windows.front().load.num_layers()), true);
  for (const LoadWindow& window : windows) {
    const RealMatrix load = window.load.ToDouble();
    for (Eigen::Index row = 0; row < load.rows(); ++row) {
      if ((load.row(row) != 0).any()) dense[static_cast<size_t>(row)] = false;
    }
  }
  return dense;
}

std::string NoteOnDenseRows(const std::vector<bool>& dense, const LayerChoice& choice,
                            const char* how) {
  if (!choice.list.empty()) return {};
  LayerNumbers odd;     // rows to report
  LayerNumbers others;  // the rest
  const size_t end = choice.first.has_value()
                         ? std::min(static_cast<size_t>(*choice.first), dense.size())
                         : dense.size();
  for (size_t row = 0; row < end; ++row) {
    (dense[row] != choice.first.has_value() ? odd : others).push_back(static_cast<int32_t>(row));
  }
  if (odd.empty()) return {};
  const std::string rows = absl::StrCat(odd.size() == 1 ? "row " : "rows ", LayerNumbersText(odd));
  if (choice.first.has_value()) {
    return absl::StrCat(rows, odd.size() == 1 ? " is" : " are", " left out for ", choice.Flag(),
                        ", though not a dense layer (", how, ")");
  }
  if (others.empty()) return {};
  const bool leading =
      others.front() + static_cast<int32_t>(others.size()) == static_cast<int32_t>(dense.size());
  return absl::StrCat(
      rows, odd.size() == 1 ? " looks" : " look", " like dense layers (", how,
      "), and sglang has a row for every model layer; give ",
      leading ? LayerChoice{.first = others.front()}.Flag() : LayerChoice{.list = others}.Flag(),
      " to leave them out");
}

}  // namespace eplb
