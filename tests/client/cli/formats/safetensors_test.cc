#include "client/cli/formats/safetensors.h"

#include <gmock/gmock.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/client/cli/formats/refused.h"
#include "tests/client/cli/formats/safetensors_bytes.h"

namespace eplb {
namespace {

constexpr char kHeader[] =
    R"({"__metadata__":{"format":"pt"},"b":{"dtype":"I64","shape":[1],"data_offsets":[16,24]},)"
    R"("a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]}})";

TEST(SafetensorsTest, TensorsAreFoundWhereTheHeaderSays) {
  const std::string data = "0123456789abcdefABCDEFGH";
  const std::string file = SafetensorsBytes(std::string(kHeader) + "   ", data);
  const auto tensors = Must(ParseSafetensors(file));
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[0].name, "b");
  EXPECT_EQ(tensors[0].data, "ABCDEFGH");
  EXPECT_EQ(tensors[1].dtype, "I64");
  EXPECT_EQ(tensors[1].shape, std::vector<int64_t>{2});
  EXPECT_EQ(tensors[1].data, "0123456789abcdef");
}

TEST(SafetensorsTest, WhatIsNoneIsRefused) {
  const std::string data(24, '\0');
  const std::string header = kHeader;
  auto with = [&](const std::string& from, const std::string& to) {
    return SafetensorsBytes(With(header, from, to), data);
  };
  const std::string good = SafetensorsBytes(header, data);
  std::string huge = good;
  huge[7] = '\x7f';
  const Refused cases[] = {
      {"Empty", "", "truncated in the header's length"},
      {"CutInLength", good.substr(0, 7), "truncated in the header's length"},
      {"CutInHeader", good.substr(0, 50), "truncated in the header: it claims"},
      {"HugeHeader", huge, "truncated in the header: it claims"},
      {"CutInData", good.substr(0, good.size() - 1), "data_offsets are not"},
      {"Trailing", good + "x", "has 25 bytes of numbers, the header claims 24"},
      {"NoJson", SafetensorsBytes("{hello}", ""), "header: line 1"},
      {"NoObject", SafetensorsBytes("[1]", ""), "header is no JSON object"},
      {"KeyTwice", with("\"b\"", "\"a\""), "key \"a\" is given twice"},
      {"NoDtype", with("\"dtype\"", "\"type\""), "tensor \"b\": dtype is missing"},
      {"NoOffsets", with("data_offsets", "offsets"), "tensor \"b\": data_offsets is missing"},
      {"TensorIsNumber", with("{\"format\":\"pt\"},\"b\":", "{},\"c\":7,\"b\":"),
       "tensor \"c\": dtype is missing"},
      {"HugeOffset", with("[16,24]", "[16,1000000000]"), "two rising numbers in 0..24"},
      {"Backwards", with("[16,24]", "[24,16]"), "two rising numbers"},
      {"Negative", with("[16,24]", "[-8,24]"), "two rising numbers"},
      {"ThreeOffsets", with("[16,24]", "[16,20,24]"), "two rising numbers"},
      {"Overlap", with("[16,24]", "[8,24]"), "tensor \"b\" begins at byte 8, the one before ends"},
      {"Gap", with("[0,16]", "[0,8]"), "tensor \"b\" begins at byte 16, the one before ends at"},
      {"ManyDimensions", with("[1]", "[1,1,1,1,1,1,1,1,1]"), "no list of up to 8 integers"},
      {"RealShape", with("[1]", "[1.5]"), "no list of up to 8 integers"},
  };
  for (const Refused& refused : cases) {
    const absl::Status status = ParseSafetensors(refused.bytes).status();
    ExpectRefusal(refused, absl::Status(status.code(), "f: " + std::string(status.message())));
  }
}

TEST(SafetensorsTest, RandomDamageIsReadOrRefused) {
  constexpr uint64_t kSeed = 41;
  SCOPED_TRACE(kSeed);
  std::mt19937_64 random(kSeed);
  const std::string good = SafetensorsBytes(kHeader, std::string(24, '\0'));
  for (int round = 0; round < 3000; ++round) {
    std::string bytes = good;
    bytes[random() % bytes.size()] =
        static_cast<char>(random() % 2 == 0 ? "0123456789-,[]{}\""[random() % 17] : random());
    const auto tensors = ParseSafetensors(bytes);
    if (!tensors.ok()) continue;
    for (const SafeTensor& tensor : *tensors) {
      EXPECT_GE(tensor.data.data(), bytes.data());
      EXPECT_LE(tensor.data.data() + tensor.data.size(), bytes.data() + bytes.size());
    }
  }
}

}  // namespace
}  // namespace eplb
