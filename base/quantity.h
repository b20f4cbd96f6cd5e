// Numbers with a unit, as people write them on a command line: "88MB", "5%", "500ms".
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

namespace eplb {

// A finite decimal number and the text that follows it.
struct Quantity {
  double number = 0;
  std::string_view unit;  // without the spaces around it
};

// Splits a text that begins with a number; hexadecimal numbers, "inf" and "nan" are none.
std::optional<Quantity> SplitQuantity(std::string_view text);

// Removes a decimal prefix, k, M, G or T, from the front of a unit. returns: its factor, 1 without.
double TakeDecimalPrefix(std::string_view& unit);

// A whole number of bytes in 0..2^63-1. Units are B, kB, MB, GB, TB (powers of 1000) and KiB, MiB,
// GiB, TiB (powers of 1024); a number without a unit counts bytes and has no exponent.
std::optional<int64_t> ParseBytes(std::string_view text);
inline constexpr char kBytesExpected[] = "a number of bytes such as 88MB, 84MiB or 88080384";

// "0.05" or "5%".
std::optional<double> ParseFraction(std::string_view text);
inline constexpr char kFractionExpected[] = "a number such as 0.05 or 5%";

// A time in nanoseconds, such as "500ms", "2 min" or "1h30m". Units are ns, us, ms, s, sec, m, min,
// h and d; a number without a unit counts `bare_ns` nanoseconds.
std::optional<double> ParseNanoseconds(std::string_view text, double bare_ns);

}  // namespace eplb
