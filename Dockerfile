# SPDX-License-Identifier: Apache-2.0
# CPU ranks:  docker build -t hyperslab .
# GPU ranks:  docker build -t hyperslab-cuda --build-arg BASE=nvidia/cuda:13.0.2-cudnn-devel-ubuntu24.04
#                          --build-arg CUDA=ON .
# Run:        docker run --rm -v "$PWD:/data" hyperslab mpirun -np 2 hyperslab train DECK
# (GPUs: add --gpus all --shm-size 1g.) The image builds for x86-64 processors with AVX2.
ARG BASE=debian:12
FROM ${BASE} AS build
ARG CUDA=OFF
ARG MARCH=x86-64-v3
COPY . /hyperslab
WORKDIR /hyperslab
RUN packaging/container-build.sh "${CUDA}" "${MARCH}" /opt/hyperslab

FROM ${BASE}
COPY --from=build /opt/hyperslab /usr/local
COPY packaging/container-packages.sh /tmp/
RUN /tmp/container-packages.sh /usr/local && rm /tmp/container-packages.sh
# mpirun refuses to start as root, which is who runs in most containers, unless told so.
ENV OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    OMPI_MCA_btl_vader_single_copy_mechanism=none
WORKDIR /data
CMD ["hyperslab", "--help"]
