#include "client/cli/text.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace eplb::cli {
namespace {

// Eighths of a cell: growing to the right, and growing upwards.
constexpr const char* kEighths[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
constexpr const char* kUp[] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇"};
constexpr const char* kFull = "█";

// How many eighths of `cells` cells a value fills; anything above nothing fills one.
int Eighths(double value, double full, int cells) {
  if (!(value > 0) || !(full > 0)) return 0;
  const double share = std::min(1.0, value / full);
  return std::max(1, static_cast<int>(std::lround(share * cells * 8)));
}

std::string Repeated(const char* piece, int times) {
  std::string text;
  for (int i = 0; i < times; ++i) text += piece;
  return text;
}

std::vector<int> WidthsOf(const Table& table) {
  std::vector<int> widths;
  for (const std::string& cell : table.heading) widths.push_back(DisplayWidth(cell));
  for (const auto& row : table.rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], DisplayWidth(row[i]));
  }
  if (table.named) widths[0] = std::min(widths[0], kMostText);
  return widths;
}

void Drop(Table& table, std::string_view heading) {
  const auto at = std::ranges::find(table.heading, heading) - table.heading.begin();
  if (at == std::ssize(table.heading)) return;
  table.heading.erase(table.heading.begin() + at);
  table.right.erase(table.right.begin() + at);
  for (auto& row : table.rows) row.erase(row.begin() + at);
}

}  // namespace

std::string GroupDigits(std::string digits) {
  const int first = digits.starts_with('-') ? 1 : 0;
  for (int at = static_cast<int>(digits.size()) - 3; at > first; at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

std::string Tokens(double tokens) {
  constexpr std::pair<double, const char*> kUnits[] = {
      {1e18, "E"}, {1e15, "P"}, {1e12, "T"}, {1e9, "G"}, {1e6, "M"}};
  if (tokens >= 1e21) return absl::StrFormat("%.3g", tokens);
  for (const auto& [size, name] : kUnits) {
    if (tokens >= size) return absl::StrFormat("%.3f %s", tokens / size, name);
  }
  if (tokens >= 100 || tokens == std::floor(tokens)) return Grouped(std::llround(tokens));
  return absl::StrFormat("%.3g", tokens);
}

std::string FigureText(const std::optional<double>& figure, int digits) {
  return figure ? absl::StrFormat("%.*f", digits, *figure) : "-";
}

std::string OrDash(bool is_set, const std::string& text) { return is_set ? text : "-"; }

std::string Percent(double fraction) {
  const double percent = 100 * fraction;
  if (percent >= 1e6) return absl::StrFormat("%.2g %%", percent);
  return absl::StrFormat("%.*f %%", percent >= 100 ? 0 : 2, percent);
}

std::string Seconds(double seconds) {
  if (seconds < 0) return "-" + Seconds(-seconds);
  if (seconds == 0) return "0 s";
  if (seconds < 1e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 1) return absl::StrFormat("%.1f ms", seconds * 1e3);
  if (seconds < 60) return absl::StrFormat("%.1f s", seconds);
  const auto minutes = static_cast<int64_t>(std::min(seconds, 1e15) / 60);
  if (minutes < 60) return absl::StrFormat("%dm %02ds", minutes, std::lround(seconds) % 60);
  if (minutes < int64_t{48} * 60) return absl::StrFormat("%dh %02dm", minutes / 60, minutes % 60);
  return absl::StrFormat("%dd %02dh", minutes / 1440, minutes / 60 % 24);
}

std::string Wrapped(std::string_view text, int width, int indent) {
  std::string result;
  int column = 0;
  for (const absl::string_view word :
       absl::StrSplit(absl::string_view(text.data(), text.size()), ' ', absl::SkipEmpty())) {
    const int length = DisplayWidth({word.data(), word.size()});
    if (column > indent && column + 1 + length > width) {
      absl::StrAppend(&result, "\n", std::string(static_cast<size_t>(indent), ' '));
      column = indent;
    } else if (column > 0) {
      result += ' ';
      ++column;
    }
    absl::StrAppend(&result, word);
    column += length;
  }
  return result;
}

std::string Paragraph(std::string_view text, const Terminal& terminal, int indent, Colour colour) {
  if (text.empty()) return "";
  return Paint(terminal, colour, Wrapped(text, terminal.width, indent)) + "\n";
}

std::string Heading(std::string_view text, const Terminal& terminal) {
  return Paint(terminal, Colour::kBold, text) + "\n";
}

std::string Beside(std::string_view label, int column, std::string_view text,
                   const Terminal& terminal) {
  const int room = column - DisplayWidth(label);
  const std::string lines = Wrapped(text, terminal.width - column, 0);
  const std::string indent(static_cast<size_t>(column), ' ');
  return absl::StrCat(std::string(label), std::string(static_cast<size_t>(std::max(room, 1)), ' '),
                      absl::StrReplaceAll(lines, {{"\n", "\n" + indent}}));
}

std::string Shortened(std::string_view text, int width) {
  if (DisplayWidth(text) <= width) return std::string(text);
  size_t end = 0;
  for (size_t most = 1; most <= text.size(); ++most) {
    const std::string_view start = FirstCharacters(text, most);
    if (DisplayWidth(start) > width - 2) break;
    end = start.size();
  }
  return absl::StrCat(std::string(text.substr(0, end)), "..");
}

std::string ShortenedName(std::string_view name, int width) {
  if (DisplayWidth(name) <= width) return std::string(name);
  size_t start = name.size();  // the first character of the end that stays
  while (start > 0 && DisplayWidth(name.substr(start)) < (width - 2) / 2) --start;
  return Shortened(name, width - DisplayWidth(name.substr(start))) +
         std::string(name.substr(start));
}

Table::Table(std::vector<std::string> columns) {
  for (std::string& column : columns) AddColumn(std::move(column));
}

void Table::AddColumn(std::string column) {
  right.push_back(column.starts_with('>'));
  heading.push_back(right.back() ? column.substr(1) : std::move(column));
}

std::string FormatTable(Table table, const Terminal& terminal) {
  std::vector<int> widths = WidthsOf(table);
  const auto free = [&widths, &terminal] {
    const int spaces = 2 * (static_cast<int>(widths.size()) - 1);
    return terminal.width - std::accumulate(widths.begin(), widths.end(), spaces);
  };
  for (const std::string& heading : table.drop) {
    if (free() >= 0) break;
    Drop(table, heading);
    widths = WidthsOf(table);
  }
  if (table.named) {
    const int most = widths[0] + std::max(free(), 0);
    for (auto& row : table.rows) row[0] = ShortenedName(row[0], most);
    table.named = false;
    widths = WidthsOf(table);
  }
  const auto line = [&](const std::vector<std::string>& row, Colour colour) {
    std::string text;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(static_cast<size_t>(widths[i] - DisplayWidth(row[i])), ' ');
      absl::StrAppend(&text, i == 0 ? "" : "  ", table.right[i] ? space : "",
                      Paint(terminal, colour, row[i]), table.right[i] ? "" : space);
    }
    return absl::StrCat(absl::StripTrailingAsciiWhitespace(text), "\n");
  };
  std::string text = line(table.heading, Colour::kDim);
  for (const auto& row : table.rows) text += line(row, Colour::kNone);
  return text;
}

std::string Bar(double value, double full, int width, const Terminal& terminal) {
  const int eighths = Eighths(value, full, width);
  if (!terminal.unicode) return std::string(static_cast<size_t>((eighths + 7) / 8), '#');
  return Repeated(kFull, eighths / 8) + kEighths[eighths % 8];
}

std::vector<std::string> ColumnChart(std::span<const double> values, double full, int height,
                                     int width, const Terminal& terminal) {
  std::vector<double> columns;
  const size_t per_column =
      (values.size() + static_cast<size_t>(width) - 1) / static_cast<size_t>(std::max(width, 1));
  for (size_t i = 0; i < values.size(); i += per_column) {
    const size_t end = std::min(i + per_column, values.size());
    columns.push_back(*std::max_element(values.begin() + static_cast<ptrdiff_t>(i),
                                        values.begin() + static_cast<ptrdiff_t>(end)));
  }
  std::vector<std::string> lines;
  for (int row = height - 1; row >= 0; --row) {
    std::string line;
    for (const double value : columns) {
      const int eighths = std::clamp(Eighths(value, full, height) - 8 * row, 0, 8);
      const char* ascii = eighths >= 4 ? "#" : (eighths > 0 ? "." : " ");
      const char* block = eighths == 8 ? kFull : kUp[eighths];
      line += terminal.unicode ? block : ascii;
    }
    absl::StripTrailingAsciiWhitespace(&line);
    lines.push_back(std::move(line));
  }
  return lines;
}

}  // namespace eplb::cli
