"""A plan as a picture: nodes × GPUs with replica, stage and rank, memory and links.

One scene, plain data, is drawn three ways: text for a terminal, SVG, and a page of HTML that holds
the SVG and says the same in tables. Nothing here reads a cluster or decides anything.
"""
