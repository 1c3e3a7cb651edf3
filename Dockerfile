# An image for hubs, Binder and clusters; docs/hubs.md says how each uses it. As hubs expect, a user
# jovyan runs it, Jupyter listens on port 8888, and `jupyterhub-singleuser` is on the path.
ARG BASE=python:3.11-slim
FROM ${BASE}

# git and make are for updates; the other two are the sandbox that grading needs.
RUN apt-get update \
    && apt-get install -y --no-install-recommends bubblewrap git libseccomp2 make \
    && rm -rf /var/lib/apt/lists/*

# A hub mounts each learner's volume over the home, so the project lies elsewhere, and only work/
# is in the home.
ARG NB_USER=jovyan NB_UID=1000
RUN useradd --create-home --shell /bin/bash --uid ${NB_UID} ${NB_USER} \
    && install --directory --owner ${NB_UID} /srv/workbook
ENV HOME=/home/${NB_USER} SHELL=/bin/bash
WORKDIR /srv/workbook
COPY --chown=${NB_UID} . .
RUN ln -s ${HOME}/work work

# JUPYTERHUB: the hub's version, as far as both must agree. PIP_EXTRA_INDEX_URL: for a PyTorch
# without CUDA, several gigabytes smaller, the address that PyTorch's selector shows for CPU.
ARG JUPYTERHUB=5 PIP_EXTRA_INDEX_URL=
RUN pip install --no-cache-dir --editable ".[lab,grade,serve,cluster]" \
    "jupyterhub==${JUPYTERHUB}.*" --constraint constraints.txt

# Learners don't see the panels of nbgrader, which are for instructors.
ENV JUPYTER_CONFIG_PATH=/srv/workbook/.jupyter
USER ${NB_USER}
EXPOSE 8888
# Whatever starts in the image finds the labs and the start page in work/: this copies what is
# missing there, and asks JupyterLab only for its version.
ENTRYPOINT ["sh", "-c", "mkdir -p ~/work && python -m workbook lab --version && exec \"$@\"", "sh"]
CMD ["python", "workbook.py", "lab", "--no-browser", "--ip=0.0.0.0", "--port=8888"]
