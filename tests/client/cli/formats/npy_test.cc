#include "client/cli/formats/npy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "tests/client/cli/formats/npy_bytes.h"
#include "tests/client/cli/formats/refused.h"

namespace eplb {

namespace {

using ::testing::HasSubstr;

template <class Number>
void ExpectReads(const std::string& descr) {
  const std::string data = Bytes(std::vector<Number>{1, 2, 3, 4, 5, 127});
  const auto windows = ParseLoadNpy(NpyWithDict(NpyDict(descr, "(2, 3)"), data));
  ASSERT_TRUE(windows.ok()) << descr << windows.status();
  ASSERT_EQ(windows->size(), 1U);
  const Load& load = windows->front().load;
  EXPECT_EQ(load.is_counts(), std::is_integral_v<Number>) << descr;
  EXPECT_EQ(load.ToDouble()(1, 0), 4.0) << descr;
  EXPECT_EQ(load.ToDouble()(1, 2), 127.0) << descr;
}

TEST(LoadNpyTest, EveryNumberTypeIsRead) {
  ExpectReads<int8_t>("|i1");
  ExpectReads<uint8_t>("|u1");
  ExpectReads<int16_t>("<i2");
  ExpectReads<uint16_t>("<u2");
  ExpectReads<int32_t>("<i4");
  ExpectReads<uint32_t>("<u4");
  ExpectReads<int64_t>("<i8");
  ExpectReads<uint64_t>("<u8");
  ExpectReads<float>("<f4");
  ExpectReads<double>("<f8");
}

TEST(LoadNpyTest, FortranOrderIsTheSameArray) {
  // Element (w, l, e) is 100 w + 10 l + e; Fortran order runs the first index fastest.
  std::vector<int32_t> c_order;
  std::vector<int32_t> fortran_order;
  for (int w = 0; w < 2; ++w) {
    for (int l = 0; l < 3; ++l) {
      for (int e = 0; e < 4; ++e) c_order.push_back(100 * w + 10 * l + e);
    }
  }
  for (int e = 0; e < 4; ++e) {
    for (int l = 0; l < 3; ++l) {
      for (int w = 0; w < 2; ++w) fortran_order.push_back(100 * w + 10 * l + e);
    }
  }
  const auto from_c = ParseLoadNpy(NpyWithDict(NpyDict("<i4", "(2, 3, 4)"), Bytes(c_order)));
  const auto from_fortran =
      ParseLoadNpy(NpyWithDict(NpyDict("<i4", "(2, 3, 4)", true), Bytes(fortran_order)));
  ASSERT_TRUE(from_c.ok() && from_fortran.ok()) << from_c.status() << from_fortran.status();
  ASSERT_EQ(from_c->size(), 2U);
  for (size_t w = 0; w < 2; ++w) {
    EXPECT_EQ((*from_c)[w].load, (*from_fortran)[w].load);
    EXPECT_EQ((*from_c)[w].load.counts()(2, 3), static_cast<int64_t>(100 * w + 23));
  }
}

TEST(LoadNpyTest, LaterHeaderVersionsAreRead) {
  for (const int version : {1, 2, 3}) {
    EXPECT_TRUE(
        ParseLoadNpy(NpyWithDict(NpyDict("|u1", "(1, 2)"), std::string(2, '\1'), version)).ok());
  }
}

TEST(LoadNpyTest, TheLargestCountIsExactAndOneMoreIsRefused) {
  const std::vector<uint64_t> largest = {INT64_MAX, 0};
  EXPECT_EQ(ParseLoadNpy(NpyWithDict(NpyDict("<u8", "(1, 2)"), Bytes(largest)))
                ->front()
                .load.counts()(0, 0),
            INT64_MAX);
  const std::vector<uint64_t> more = {0, uint64_t{1} << 63};
  EXPECT_THAT(
      std::string(
          ParseLoadNpy(NpyWithDict(NpyDict("<u8", "(1, 2)"), Bytes(more))).status().message()),
      HasSubstr("layer 0 expert 1 is 9223372036854775808"));
}

TEST(LoadNpyTest, RefusalsNameTheFault) {
  const std::string six(6, '\1');
  const std::string good = NpyWithDict(NpyDict("|u1", "(2, 3)"), six);
  std::string version = good;
  version[6] = 4;
  std::string long_header = good;
  long_header[9] = '\x7f';
  const double nan = std::nan("");
  const Refused cases[] = {
      {"Magic", "\x93NUMPX" + good.substr(6), "magic"},
      {"Version", version, "version 4.0"},
      {"CutInMagic", good.substr(0, 4), "magic"},
      {"CutInLength", good.substr(0, 9), "truncated in the header"},
      {"CutInHeader", good.substr(0, 40), "truncated in the header"},
      {"LongHeader", long_header, "truncated in the header: it claims"},
      {"CutInData", good.substr(0, good.size() - 1), "truncated: has 5 bytes"},
      {"TooLong", good + "x", "too long: has 7 bytes"},
      {"Float16", NpyWithDict(NpyDict("<f2", "(2, 3)"), six + six), "float16"},
      {"BigEndian", NpyWithDict(NpyDict(">i4", "(2, 3)"), six + six), "big endian"},
      {"Bool", NpyWithDict(NpyDict("|b1", "(2, 3)"), six), "dtype |b1"},
      {"Pickle", NpyWithDict(NpyDict("|O", "(2, 3)"), six), "pickle"},
      {"Structured",
       NpyWithDict("{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,), }", six),
       "descr is an array, expected a string"},
      {"OneDimension", NpyWithDict(NpyDict("|u1", "(6,)"), six), "has 1 dimensions"},
      {"NoDimension", NpyWithDict(NpyDict("|u1", "()"), "\1"), "has 0 dimensions"},
      {"FourDimensions", NpyWithDict(NpyDict("|u1", "(1, 1, 2, 3)"), six), "has 4 dimensions"},
      {"ZeroDimension", NpyWithDict(NpyDict("|u1", "(0, 3)"), ""), "size 0"},
      {"NegativeDimension", NpyWithDict(NpyDict("|u1", "(-2, 3)"), six), "size -2"},
      {"HugeDimension", NpyWithDict(NpyDict("|u1", "(99999999999999999999, 3)"), six),
       "shape[0] is 99999999999999999999, expected 1..2^28"},
      {"HugeProduct", NpyWithDict(NpyDict("<i8", "(2147483647, 2147483647, 2)"), six), "at most"},
      {"ClaimedSize", NpyWithDict(NpyDict("<i8", "(16384, 16384)"), six), "truncated: has 6"},
      {"NoDict", NpyWithDict("hello", six), "descr is missing"},
      {"DictOpen", NpyWithDict("{'descr': '|u1', 'fortran_order': False, ", six), "dictionary"},
      {"KeyMissing", NpyWithDict("{'descr': '|u1', 'shape': (2, 3)}", six),
       "fortran_order is missing"},
      {"KeyTwice", NpyWithDict("{'descr': '|u1', 'descr': '|u1', 'shape': (2, 3)}", six), "twice"},
      {"KeyUnknown", NpyWithDict(With(NpyDict("|u1", "(2, 3)"), "{", "{'x': 1, "), six),
       "other keys"},
      {"OrderIsNumber", NpyWithDict("{'descr': '|u1', 'fortran_order': 1}", six),
       "fortran_order is an integer"},
      {"Order", NpyWithDict(With(NpyDict("|u1", "(2, 3)"), "False", "false"), six),
       "True nor False"},
      {"OfTorch", NpyWithDict(NpyDict("ByteStorage", "(2, 3)"), six), "dtype ByteStorage"},
      {"NoType", NpyWithDict(NpyDict("", "(2, 3)"), six), "has the dtype ,"},
      {"Negative", NpyWithDict(NpyDict("|i1", "(2, 3)"), std::string("\1\1\1\1\1\xff")),
       "layer 1 expert 2 is -1"},
      {"Nan", NpyWithDict(NpyDict("<f8", "(1, 2)"), Bytes(std::vector<double>{1, nan})),
       "layer 0 expert 1"},
      {"Infinite",
       NpyWithDict(NpyDict("<f4", "(1, 2, 1)"),
                   Bytes(std::vector<float>{1, std::numeric_limits<float>::infinity()})),
       "layer 1 expert 0"},
      {"NegativeInWindow", NpyWithDict(NpyDict("|i1", "(2, 1, 1)"), std::string("\1\xff")),
       "window 1: load: layer 0 expert 0 is -1"},
  };
  for (const Refused& refused : cases) {
    const absl::Status status = ParseLoadNpy(refused.bytes).status();
    ExpectRefusal(refused, absl::Status(status.code(), absl::StrCat("f: ", status.message())));
  }
}

TEST(LoadNpyTest, DamagedHeadersNeverCrash) {
  constexpr uint32_t kSeed = 3;
  SCOPED_TRACE(kSeed);
  std::mt19937 random(kSeed);
  const std::string good = NpyWithDict(NpyDict("<i2", "(2, 3)"), std::string(12, '\1'));
  int accepted = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string bad = good;
    bad[random() % 70] = static_cast<char>(random() % 256);
    const auto windows = ParseLoadNpy(bad);
    if (!windows.ok()) continue;
    ++accepted;
    ASSERT_EQ(windows->front().load.ToDouble().size() % 6, 0);
  }
  EXPECT_LT(accepted, 2500);
}

}  // namespace

}  // namespace eplb
