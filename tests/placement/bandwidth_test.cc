#include "placement/bandwidth.h"

#include <gtest/gtest.h>

namespace eplb {
namespace {

TEST(BandwidthTest, BitsAndBytesAreToldApartByTheirLetter) {
  EXPECT_EQ(*ParseBandwidth("450"), 450e9);
  EXPECT_EQ(*ParseBandwidth("0.5"), 0.5e9);
  EXPECT_EQ(*ParseBandwidth("450 GB/s"), 450e9);
  EXPECT_EQ(*ParseBandwidth("50GBps"), 50e9);
  EXPECT_EQ(*ParseBandwidth("400Gb/s"), 50e9);
  EXPECT_EQ(*ParseBandwidth("400 Gbit/s"), 50e9);
  EXPECT_EQ(*ParseBandwidth("400Gbps"), 50e9);
  EXPECT_EQ(*ParseBandwidth("1.8 TB/s"), 1.8e12);
  EXPECT_EQ(*ParseBandwidth(" 900 MB/s "), 0.9e9);
  EXPECT_EQ(*ParseBandwidth("8000 kb/s"), 1e6);
}

TEST(BandwidthTest, WhatIsNoBandwidthIsRefused) {
  for (const char* text :
       {"", "x", "GB/s", "450 gb/s", "450 GB", "450 Gib/s", "450 GB/s x", "450 PB/s", "-1", "0",
        "nan", "inf", "1e7", "1e-7", "1 B/s", "1e300 TB/s"}) {
    EXPECT_FALSE(ParseBandwidth(text).ok()) << text;
  }
}

TEST(BandwidthTest, ItsTextIsReadBack) {
  EXPECT_EQ(BandwidthText(450e9), "450 GB/s");
  EXPECT_EQ(BandwidthText(*ParseBandwidth("100Gb/s")), "12.5 GB/s");
  for (const double bytes_per_s : {450e9, 12.5e9, 1e3, 1e15, 3.7e9 / 7}) {
    EXPECT_DOUBLE_EQ(*ParseBandwidth(BandwidthText(bytes_per_s)), bytes_per_s);
  }
}

TEST(BandwidthTest, ANumberThatIsProbablyBitsIsTold) {
  EXPECT_EQ(BandwidthNote("400", LinkClass::kInterNode),
            "is read as 400 GB/s; did you mean 400Gb/s = 50 GB/s?");
  EXPECT_EQ(BandwidthNote("3600", LinkClass::kIntraNode),
            "is read as 3600 GB/s; did you mean 3600Gb/s = 450 GB/s?");
  for (const char* text : {"450", "900", "400"}) {
    EXPECT_EQ(BandwidthNote(text, LinkClass::kIntraNode), "") << text;
  }
  for (const char* text : {"50", "25", "400 GB/s", "400Gb/s", "x"}) {
    EXPECT_EQ(BandwidthNote(text, LinkClass::kInterNode), "") << text;
  }
}

}  // namespace
}  // namespace eplb
