// SPDX-License-Identifier: Apache-2.0
// The same images as a folder, as a tar of that folder and as a tar in WebDataset's form.
#include <gmock/gmock.h>

#include <map>
#include <random>

#include "hyperslab/io/images.hpp"
#include "hyperslab/io/pack_images.hpp"
#include "io/dataset/files.hpp"
#include "io/images/made_images.hpp"

namespace hyperslab::test {
namespace {

namespace fs = std::filesystem;

/// Files of class folders, and the folders alone, which end in '/'.
using Tree = std::map<std::string, std::string>;

/// Classes with images, of which one in four is no image by its name, in folders within folders
/// and hidden ones, a class without any file, files beside the classes.
class DrawnTree {
 public:
  explicit DrawnTree(unsigned seed) : random_(seed) {}

  Tree draw() {
    tree_.clear();
    const int classes = between(2, 5);
    for (int i = 0; i < classes; ++i) add_class("class" + std::to_string(between(0, 20)));
    tree_["first/a.ppm"] = image();
    tree_["second/b.ppm"] = image();
    if (between(0, 1) == 1) tree_["README.txt"] = "words";
    if (between(0, 1) == 1) tree_[".hidden/x.ppm"] = image();
    if (between(0, 1) == 1) tree_[".notes"] = "words";
    return tree_;
  }
  int between(int least, int most) {
    return least + static_cast<int>(random_() % static_cast<unsigned>(most - least + 1));
  }

 private:
  std::string image() { return make_ppm(2, ++images_); }
  void add_class(const std::string& name) {
    static const char* const folders[] = {"", "images/", "deeper/", "a/b/", ".kept/"};
    static const char* const suffixes[] = {".ppm", ".PPM", ".webp", ".ppm.txt"};
    tree_[name + "/"] = "";
    const int files = between(0, 4);
    for (int i = 0; i < files; ++i) {
      const std::string file = std::to_string(i) + suffixes[between(0, 3)];
      tree_[name + "/" + folders[between(0, 4)] + file] = image();
    }
  }

  std::mt19937 random_;
  Tree tree_;
  int images_ = 0;
};

class EqualSources : public FilesTest {
 protected:
  void write_folder(const std::string& folder, const Tree& tree) {
    for (const auto& [name, bytes] : tree) {
      fs::create_directories(fs::path(path(folder + "/" + name)).parent_path());
      if (!name.ends_with('/')) write(folder + "/" + name, bytes);
    }
  }
  void write_tar(const std::string& file, const std::string& before, const Tree& tree) {
    std::string out;
    for (const auto& [name, bytes] : tree) {
      out += tar_member(before + name, bytes, name.ends_with('/') ? '5' : '0');
    }
    write(file, out + tar({}));
  }
  io::PackedImages pack(const std::string& input, const std::string& output) {
    io::ImagePacking packing;
    packing.inputs = {path(input)};
    packing.output = path(output);
    return io::pack_images(packing);
  }
  /// Labels by the bytes of the images, of which no two are equal.
  [[nodiscard]] std::map<std::string, std::int32_t> labels(const std::string& packed) const {
    const auto set = io::open_images({path(packed)}, {.classes = 100, .size = 8, .seed = 1});
    std::map<std::string, std::int32_t> found;
    for (std::int64_t i = 0; i < set->size(); ++i) {
      const auto bytes = set->bytes(i);
      found[{reinterpret_cast<const char*>(bytes.data()), bytes.size()}] = set->label(i);
    }
    return found;
  }
  /// The images of a packed set as WebDataset has them.
  void write_samples(const std::string& file, const std::string& packed) {
    std::string out;
    for (const auto& [bytes, label] : labels(packed)) {
      const std::string stem = std::to_string(out.size());
      out += tar_member(stem + ".ppm", bytes) + tar_member(stem + ".cls", std::to_string(label));
    }
    write(file, out + tar({}));
  }
};

TEST_F(EqualSources, HaveTheSameClassesLabelsAndCounts) {
  for (unsigned seed = 0; seed < 60; ++seed) {
    SCOPED_TRACE(seed);
    DrawnTree drawn(seed);
    const Tree tree = drawn.draw();
    const std::string at = std::to_string(seed);
    write_folder("in" + at, tree);
    const std::string before = drawn.between(0, 1) == 1 ? "./" : "data/train/";
    write_tar("in" + at + ".tar", before, tree);

    const io::PackedImages of_folder = pack("in" + at, "folder" + at);
    const io::PackedImages of_tar = pack("in" + at + ".tar", "tar" + at);
    write_samples("samples" + at + ".tar", "folder" + at);
    const io::PackedImages of_samples = pack("samples" + at + ".tar", "samples" + at);

    EXPECT_EQ(of_folder.classes, of_tar.classes);
    EXPECT_EQ(of_folder.class_images, of_tar.class_images);
    EXPECT_EQ(of_folder.other_files, of_tar.other_files);
    EXPECT_EQ(labels("folder" + at), labels("tar" + at));
    EXPECT_EQ(labels("folder" + at), labels("samples" + at));
    EXPECT_EQ(of_samples.other_files, 0);
  }
}

}  // namespace
}  // namespace hyperslab::test
