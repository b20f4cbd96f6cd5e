// Numbers, sentences, tables and bars as text.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/foreign_text.h"
#include "client/cli/terminal.h"

namespace eplb::cli {

std::string GroupDigits(std::string digits);  // "1234567" -> "1,234,567"
template <class Integer>
std::string Grouped(Integer number) {
  return GroupDigits(absl::StrCat(number));
}
std::string Tokens(double tokens);     // "812", "12,345", "1.235 M", "4.200 T"
std::string Percent(double fraction);  // 0.0123 -> "1.23 %"
std::string Seconds(double seconds);   // "41 us", "4.1 ms", "3.2 s", "2h 05m"
template <class Integer>
std::string Counted(Integer n, const char* one) {  // 1 -> "1 layer", 2 -> "2 layers"
  return absl::StrCat(Grouped(n), " ", one, n == 1 ? "" : "s");
}
// "0.7275"; "-" for a figure without a sample.
std::string FigureText(const std::optional<double>& figure, int digits = 4);
// `text` if `is_set`, otherwise "-".
std::string OrDash(bool is_set, const std::string& text);
// Words of `text` on lines of at most `width` columns; all but the first begin with `indent`
// spaces.
std::string Wrapped(std::string_view text, int width, int indent);
// Wrapped for the width of the terminal, with a newline at the end; empty for an empty text.
std::string Paragraph(std::string_view text, const Terminal& terminal, int indent = 2,
                      Colour colour = Colour::kNone);
// `text` in bold, with a newline at the end.
std::string Heading(std::string_view text, const Terminal& terminal);
// `label` in a column of `column` columns, and the words of `text` wrapped beside it.
std::string Beside(std::string_view label, int column, std::string_view text,
                   const Terminal& terminal);
inline constexpr int kMostText = 24;  // columns of a foreign text in a table
// At most `width` columns; a text that is cut off ends in "..".
std::string Shortened(std::string_view text, int width);
// At most `width` columns of a name, cut in the middle: names of one kind often differ at the end.
std::string ShortenedName(std::string_view name, int width);
inline constexpr int kMostReason = 72;  // columns of a decision's reason; explain has all of it
inline std::string ShortReason(std::string_view reason) {
  return Shortened(Printable(std::string(reason)), kMostReason);
}

// Rows under a heading; columns as wide as their widest cell, two spaces between them, trailing
// spaces cut.
struct Table {
  // A heading that begins with '>' is that of a column aligned to the right.
  explicit Table(std::vector<std::string> columns);
  void AddColumn(std::string column);

  std::vector<std::string> heading;
  std::vector<bool> right;
  std::vector<std::vector<std::string>> rows;
  std::vector<std::string> drop;  // headings in the order in which a narrow terminal drops them
  bool named = false;             // the first column has names, which may be cut to kMostText
};

// Drops columns until lines fit the terminal. Names get the room that is left over.
std::string FormatTable(Table table, const Terminal& terminal);

// A horizontal bar of `value` / `full` * `width` columns, in eighths where Unicode can be shown.
std::string Bar(double value, double full, int width, const Terminal& terminal);

// A chart at most `height` lines tall with one column per value; with more values than `width`, a
// column is the largest of its neighbours. `full` is the value of a whole column.
std::vector<std::string> ColumnChart(std::span<const double> values, double full, int height,
                                     int width, const Terminal& terminal);

}  // namespace eplb::cli
