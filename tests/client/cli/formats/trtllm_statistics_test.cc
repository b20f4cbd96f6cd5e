#include <gmock/gmock.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "client/cli/formats/engine_formats.h"
#include "tests/client/cli/formats/npy_bytes.h"
#include "tests/client/cli/formats/refused.h"
#include "tests/client/cli/formats/safetensors_bytes.h"
#include "tests/client/cli/formats/test_files.h"

namespace eplb {
namespace {

using ::testing::HasSubstr;

using Tensors = std::map<std::string, std::vector<int64_t>>;

std::string FileOf(const Tensors& tensors) {
  std::string header;
  std::string data;
  for (const auto& [name, numbers] : tensors) {
    const size_t begin = data.size();
    data += Bytes(numbers);
    absl::StrAppend(&header, header.empty() ? "{" : ",", "\"", name,
                    R"(":{"dtype":"I64","shape":[)", numbers.size(), "],\"data_offsets\":[", begin,
                    ",", data.size(), "]}");
  }
  return SafetensorsBytes(header.empty() ? "{}" : header + "}", data);
}

class TrtllmStatisticsTest : public FilesTest {
 protected:
  void SetUp() override {
    FilesTest::SetUp();
    Write("meta_info.json", R"({"num_experts":2,"num_experts_per_token":1})");
  }
  // Two ranks, iterations 9 and 10 (whose names sort the other way), layers 3 and 4.
  void WriteGood() {
    Write("rank0.safetensors",
          FileOf({{"9_3", {1, 2}}, {"9_4", {3, 4}}, {"10_3", {5, 6}}, {"10_4", {7, 8}}}));
    Write("rank1.safetensors",
          FileOf({{"9_3", {10, 20}}, {"9_4", {30, 40}}, {"10_3", {50, 60}}, {"10_4", {70, 80}}}));
  }
  // The message, which must name `file` of the directory.
  std::string Refusal(const std::string& file) {
    const absl::Status status = ReadTrtllmStatistics(Path("")).status();
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(file + ": "));
    return std::string(status.message());
  }
};

TEST_F(TrtllmStatisticsTest, RanksAreAddedAndIterationsAreWindows) {
  WriteGood();
  EXPECT_TRUE(IsTrtllmStatistics(Path("")));
  const auto file = Must(ReadTrtllmStatistics(Path("")));
  const std::vector<LoadWindow>& windows = file.windows;
  ASSERT_EQ(windows.size(), 2U);
  EXPECT_EQ(windows[0].first_step, 9);
  EXPECT_EQ(windows[1].last_step, 10);
  EXPECT_EQ(file.layers, (LayerNumbers{3, 4}));
  EXPECT_EQ(windows[0].load.counts()(1, 0), 33);
  EXPECT_EQ(windows[1].load.counts()(0, 1), 66);
}

TEST_F(TrtllmStatisticsTest, AnotherDirectoryOrAFileIsRefused) {
  EXPECT_FALSE(IsTrtllmStatistics(Path("missing")));
  EXPECT_FALSE(IsTrtllmStatistics(Path("meta_info.json")));
  EXPECT_THAT(std::string(ReadTrtllmStatistics(Path("meta_info.json")).status().message()),
              HasSubstr("meta_info.json: is no directory"));
  EXPECT_THAT(Refusal(""), HasSubstr("rank0.safetensors is missing"));
}

TEST_F(TrtllmStatisticsTest, WhatMetaInfoSaysMustHold) {
  WriteGood();
  const std::pair<const char*, const char*> cases[] = {
      {"{}", "num_experts is missing"},
      {"{\"num_experts\":2", "line 1"},
      {"[]", "num_experts is missing"},
      {R"({"num_experts":"2"})", "num_experts is a string"},
      {R"({"num_experts":0})", "num_experts is 0"},
      {R"({"num_experts":1000000000})", "num_experts is 1000000000"},
      {R"({"num_experts":2,"num_experts":2})", "given twice"},
      {R"({"num_experts":2,"ep_size":"x"})", "ep_size is a string"},
  };
  for (const auto& [meta, message] : cases) {
    Write("meta_info.json", meta);
    EXPECT_THAT(Refusal("meta_info.json"), HasSubstr(message));
  }
  Write("meta_info.json", R"({"num_experts":2,"ep_size":3})");
  EXPECT_THAT(Refusal(""), HasSubstr("rank2.safetensors is missing, expected the files of 3"));
  Write("meta_info.json", R"({"num_experts":2,"ep_size":1})");
  EXPECT_THAT(Refusal(""), HasSubstr("files of 2 ranks, meta_info.json has ep_size 1"));
  Write("meta_info.json", R"({"num_experts":3})");
  EXPECT_THAT(Refusal("rank0.safetensors"), HasSubstr("expected \"I64\" [3] in 24"));
}

TEST_F(TrtllmStatisticsTest, AMissingRankIsNamed) {
  WriteGood();
  std::filesystem::rename(Path("rank1.safetensors"), Path("rank2.safetensors"));
  EXPECT_THAT(Refusal(""), HasSubstr("rank1.safetensors is missing"));
  std::filesystem::rename(Path("rank2.safetensors"), Path("rank2147483647.safetensors"));
  EXPECT_THAT(Refusal(""), HasSubstr("rank1.safetensors is missing"));
}

TEST_F(TrtllmStatisticsTest, ABrokenRankFileIsNamed) {
  WriteGood();
  const std::string good = Read(Path("rank1.safetensors"));
  const Tensors tensors = {
      {"9_3", {10, 20}}, {"9_4", {30, 40}}, {"10_3", {50, 60}}, {"10_4", {70, 80}}};
  auto with = [&tensors](const std::string& key, const std::vector<int64_t>& numbers) {
    Tensors changed = tensors;
    changed[key] = numbers;
    return FileOf(changed);
  };
  auto without = [&tensors](const std::string& key) {
    Tensors changed = tensors;
    changed.erase(key);
    return FileOf(changed);
  };
  auto renamed = [&tensors](const std::string& key, const std::string& to) {
    Tensors changed = tensors;
    changed[to] = changed[key];
    changed.erase(key);
    return FileOf(changed);
  };
  std::string other_type = good;
  other_type.replace(other_type.find("I64"), 3, "F64");
  const std::pair<std::string, const char*> cases[] = {
      {"", "truncated"},
      {good.substr(0, good.size() - 8), "data_offsets"},
      {with("9_4", {30, -40}), "9_4 expert 1 is -40, counts are >= 0"},
      {with("9_4", {30, INT64_MAX}), "the sum over ranks is above 2^63-1"},
      {with("9_4", {30, 40, 50}), "9_4 is \"I64\" of 3 numbers"},
      {with("9_5", {1, 1}), "has 9_5, which rank0.safetensors has not"},
      {without("9_4"), "has 3 tensors, rank0.safetensors has 4"},
      {renamed("9_4", "9-4"), "the tensor \"9-4\", expected \"iteration_layer\""},
      {renamed("9_4", "9_04"), "\"9_04\""},
      {renamed("9_4", "-9_4"), "\"-9_4\""},
      {renamed("9_4", "9_99999999999"), "\"9_99999999999\""},
      {other_type, "is \"F64\" of 2 numbers"},
  };
  for (const auto& [bytes, message] : cases) {
    Write("rank1.safetensors", bytes);
    EXPECT_THAT(Refusal("rank1.safetensors"), HasSubstr(message));
  }
}

TEST_F(TrtllmStatisticsTest, LayersMayHaveGapsAndAreTheSameInEveryIteration) {
  Write("rank0.safetensors", FileOf({{"9_1", {1, 2}}, {"9_5", {3, 4}}}));
  const auto file = Must(ReadTrtllmStatistics(Path("")));
  EXPECT_EQ(file.layers, (LayerNumbers{1, 5}));
  EXPECT_EQ(file.windows.front().load.counts()(1, 0), 3);
  Write("rank0.safetensors", FileOf({{"9_3", {1, 2}}, {"9_4", {3, 4}}, {"10_3", {5, 6}}}));
  EXPECT_THAT(Refusal(""), HasSubstr("iteration 10 has layers 3, iteration 9 has 3,4"));
  Write("rank0.safetensors", FileOf({{"9_3", {1, 2}}, {"10_4", {5, 6}}}));
  EXPECT_THAT(Refusal(""), HasSubstr("iteration 10 has layers 4, iteration 9 has 3"));
  Write("rank0.safetensors", FileOf({}));
  EXPECT_THAT(Refusal(""), HasSubstr("holds no counts"));
  Write("rank0.safetensors", FileOf({{"9_3", {INT64_MAX, 1}}}));
  EXPECT_THAT(Refusal(""), HasSubstr("iteration 9: load: the sum of layer 0"));
}

}  // namespace
}  // namespace eplb
