// SPDX-License-Identifier: Apache-2.0
#include "hyperslab/plan/machine_file.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "hyperslab/core/error.hpp"
#include "hyperslab/io/text_file.hpp"
#include "plan/made_up_machine.hpp"
#include "support/temp_folder.hpp"

namespace hyperslab::plan {
namespace {

using test::made_up_machine;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

class MachineFiles : public testing::Test {
 protected:
  [[nodiscard]] std::string file(const std::string& text) const {
    const std::string path = folder_.path() + "/machine.json";
    io::write_text_file(path, text);
    return path;
  }

 private:
  test::TempFolder folder_;
};

TEST_F(MachineFiles, DeepNestingIsRefused) {
  const std::string path =
      file(R"({"format":)" + std::string(100'000, '[') + std::string(100'000, ']') + "}");

  EXPECT_THAT([&] { (void)read_machine_file(path); },
              ThrowsMessage<Error>(HasSubstr("nested too deep")));
}

TEST_F(MachineFiles, AKeyThatStandsTwiceIsRefused) {
  const std::string path = file(R"({"name":"a","name":"b"})");

  EXPECT_THAT([&] { (void)read_machine_file(path); },
              ThrowsMessage<Error>(HasSubstr("'name' stands twice")));
}

TEST_F(MachineFiles, WhatIsWrittenIsRead) {
  const MachineFile machine = made_up_machine();
  const MachineFile read = read_machine_file(file(to_text(machine)));

  EXPECT_EQ(to_text(read), to_text(machine));
  ASSERT_EQ(read.ops.at("bf16").size(), 3U);
  EXPECT_EQ(read.ops.at("bf16")[1].size, machine.ops.at("bf16")[1].size);
  EXPECT_EQ(read.collectives.size(), machine.collectives.size());
  EXPECT_EQ(read.network_bytes_per_second, machine.network_bytes_per_second);
}

TEST_F(MachineFiles, WhatARankSustainsIsOptional) {
  MachineFile machine = made_up_machine();
  EXPECT_EQ(to_text(machine).find("sustained"), std::string::npos);
  machine.sustained_flops = {{"bf16", 600e12}};
  machine.sustained_bytes_per_second = 5e12;

  MachineFile read = read_machine_file(file(to_text(machine)));
  EXPECT_EQ(read.sustained_flops, machine.sustained_flops);
  EXPECT_EQ(read.sustained_bytes_per_second, 5e12);

  merge(read, made_up_machine());  // no measurement knows them
  EXPECT_EQ(read.sustained_flops, machine.sustained_flops);
  EXPECT_EQ(read.sustained_bytes_per_second, 5e12);

  read.sustained_bytes_per_second = 0;
  read = read_machine_file(file(to_text(read)));
  EXPECT_EQ(read.sustained_flops, machine.sustained_flops) << "one without the other";
  EXPECT_EQ(read.sustained_bytes_per_second, 0);
  machine.sustained_flops.clear();
  read = read_machine_file(file(to_text(machine)));
  EXPECT_TRUE(read.sustained_flops.empty());
  EXPECT_EQ(read.sustained_bytes_per_second, 5e12);
}

TEST_F(MachineFiles, MeasuringAgainReplacesAndAdds) {
  MachineFile machine = made_up_machine();
  MachineFile again = made_up_machine();
  again.ops["bf16"][0].seconds *= 2;
  again.ops["bf16"].erase(again.ops["bf16"].begin() + 1, again.ops["bf16"].end());
  again.ops["fp32"] = again.ops["bf16"];
  again.collectives[0].ranks = 4;
  again.memory_bytes = 0;  // not known now

  merge(machine, again);

  EXPECT_EQ(machine.ops["bf16"].size(), 3U);
  EXPECT_EQ(machine.ops["fp32"].size(), 1U);
  EXPECT_EQ(machine.collectives.size(), made_up_machine().collectives.size() + 1);
  EXPECT_EQ(machine.memory_bytes, made_up_machine().memory_bytes);
}

TEST_F(MachineFiles, DamageIsNamedWithTheFile) {
  const auto refused = [](const std::string& text) {
    return ThrowsMessage<Error>(AllOf(HasSubstr("machine.json is no machine file"), HasSubstr(text),
                                      HasSubstr("--machine FILE")));
  };
  EXPECT_THAT([&] { (void)read_machine_file(file("{")); }, refused("parse error"));
  EXPECT_THAT([&] { (void)read_machine_file(file("{}")); },
              refused("machine file: key 'format' not found"));
  EXPECT_THAT([&] { (void)read_machine_file(file(R"({"format": "x", "format_version": 1})")); },
              refused("not a \"hyperslab machine\""));
  std::string text = to_text(made_up_machine());
  text.replace(text.find("\"add\",\"bf16\""), 12, "\"add\",\"bf61\"");
  EXPECT_THAT([&] { (void)read_machine_file(file(text)); }, refused("no dtype 'bf61'"));
  MachineFile machine = made_up_machine();
  machine.ops["bf16"][0].kernels = 0;
  const std::string row = "a row of " + machine.ops["bf16"][0].op;
  EXPECT_THAT([&] { (void)read_machine_file(file(to_text(machine))); }, refused(row));
  machine = made_up_machine();
  machine.ops["bf16"][0].seconds = -1;
  EXPECT_THAT([&] { (void)read_machine_file(file(to_text(machine))); }, refused(row));
}

}  // namespace
}  // namespace hyperslab::plan
