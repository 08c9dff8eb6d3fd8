# SPDX-License-Identifier: Apache-2.0
"""In the root of a checkout, with Spack 1.0 or newer:

    spack repo add packaging/spack/spack_repo/hyperslab
    spack dev-build hyperslab@main            # for GPUs: hyperslab@main+cuda cuda_arch=90
"""

from spack_repo.builtin.build_systems.cmake import CMakePackage, generator
from spack_repo.builtin.build_systems.cuda import CudaPackage

from spack.package import *


class Hyperslab(CMakePackage, CudaPackage):
    """Trains transformers across GPUs and nodes: one native program under mpirun, data, tensor and
    pipeline parallelism, YAML decks, HDF5 checkpoints that any layout can load."""

    license("Apache-2.0")

    version("main")

    variant("native", default=False, description="Compile for the processor that builds")
    variant("analysis", default=True, description="Python packages for the reports")

    # Spack has no package of these headers.
    resource(
        name="cudnn-frontend",
        git="https://github.com/NVIDIA/cudnn-frontend.git",
        tag="v1.14.0",
        placement="cudnn-frontend",
        when="+cuda",
    )

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("cmake@3.25:", type="build")
    depends_on("pkgconfig", type="build")

    depends_on("mpi")
    depends_on("hdf5@1.10:~mpi")
    depends_on("openblas threads=openmp")
    depends_on("yaml-cpp@0.7:")
    depends_on("boost@1.74:+program_options")
    depends_on("fmt@9:")
    depends_on("spdlog@1.10:")
    depends_on("nlohmann-json@3.11:")
    depends_on("pcre2")
    depends_on("utf8proc")
    depends_on("libjpeg-turbo@2.1:")
    depends_on("libpng@1.6:")
    depends_on("openssl@1.1:")

    with when("+cuda"):
        depends_on("cuda@12.4:")
        depends_on("cudnn@9:")
        depends_on("nccl@2.28:")

    with when("+analysis"):
        depends_on("python@3.11:", type="run")
        depends_on("py-h5py", type="run")
        depends_on("py-numpy", type="run")
        depends_on("py-matplotlib", type="run")
        depends_on("py-pyyaml", type="run")
        depends_on("py-jinja2", type="run")

    conflicts("%gcc@:11", msg="C++20 as it is used here needs GCC 12")
    conflicts("%clang@:15", msg="C++20 as it is used here needs Clang 16")

    generator("ninja")

    def cmake_args(self):
        args = [
            self.define("HYPERSLAB_TESTS", False),
            self.define_from_variant("HYPERSLAB_CUDA", "cuda"),
            self.define_from_variant("HYPERSLAB_NATIVE", "native"),
        ]
        if self.spec.satisfies("+cuda"):
            headers = join_path(self.stage.source_path, "cudnn-frontend", "include")
            args.append(self.define("CUDNN_FRONTEND_INCLUDE_DIR", headers))
            names = [arch for arch in self.spec.variants["cuda_arch"].value if arch != "none"]
            names = ["90a" if arch == "90" else arch for arch in names]
            if names:
                args.append(self.define("HYPERSLAB_CUDA_ARCHITECTURES", names))
        return args
