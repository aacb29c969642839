"""The files of the models that Broadsheet ships: `broadsheet.load_model("ag-news")` reads them."""
